"""What the demo projects contain: this checkout's own history, or a small repository made on the spot."""

import base64
import os
import subprocess
import tempfile
from pathlib import Path

from forgelet.local.processes import CannotStart

#: A fixed author and date make the same commits, so that pushing again is never refused.
_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in {
        "NAME": "Alice Archer",
        "EMAIL": "alice@example.org",
        "DATE": "2026-01-05T09:00:00Z",
    }.items()
}
_SMALL = {
    "README.md": "# Demo\n\nA small repository to try forgelet on.\n",
    "docs/guide.md": "# Guide\n\nClone, commit, push; then fetch the file through the edge.\n",
    "src/hello.py": 'print("hello")\n',
}
_SECRET = {
    ".gitlab-ci.yml": """stages: [build, test, deploy]

build: # nothing waits for a runner until somebody plays this
  stage: build
  when: manual
  allow_failure: false
  script:
    - mkdir out
    - date > out/built
  artifacts:
    paths: [out]

test:
  stage: test
  script: grep workers config/production.toml

deploy:
  stage: deploy
  when: manual
  script: echo deployed
""",
    "README.md": "# Secret\n\nOnly members of this project read this, through the edge too.\n",
    "config/production.toml": "[service]\nworkers = 4\n",
}


def push_project(
    checkout: Path | None, base_url: str, path: str, branch: str, username: str, token: str
) -> None:
    """Pushes the history of `checkout` with its tags if that is a whole git repository, else a small one."""
    remote = _Remote(f"{base_url}/{path}.git", username, token)
    if checkout and _is_whole_repository(checkout):
        remote.push(checkout, f"HEAD:refs/heads/{branch}", "refs/tags/*:refs/tags/*")
    else:
        _push_files(_SMALL, remote, branch)


def push_secret(base_url: str, path: str, branch: str, username: str, token: str) -> None:
    """Pushes the small repository of the private project."""
    _push_files(_SECRET, _Remote(f"{base_url}/{path}.git", username, token), branch)


class _Remote:
    """A repository over HTTP and who pushes to it; the token goes to git in its environment only."""

    def __init__(self, url: str, username: str, token: str) -> None:
        self._url = url
        basic = base64.b64encode(f"{username}:{token}".encode()).decode()
        self._environment = {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"http.{url}.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {basic}",
            "GIT_CONFIG_KEY_1": "http.proxy",
            "GIT_CONFIG_VALUE_1": "",
        }

    def push(self, repository: Path, *refspecs: str) -> None:
        """Pushes, past hooks of the repository; what another push has put there since is left alone."""
        done = _git(repository, "push", "--no-verify", "--quiet", self._url, *refspecs, **self._environment)
        if done.returncode != 0 and "[rejected]" not in done.stderr:
            said = done.stderr.strip().splitlines()
            raise CannotStart(f"git push of the demo data failed: {said[-1] if said else 'no reason given'}")


def _push_files(files: dict[str, str], remote: _Remote, branch: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        repository = Path(name)
        for file, text in files.items():
            (repository / file).parent.mkdir(parents=True, exist_ok=True)
            (repository / file).write_text(text)
        for arguments in (
            ("init", "--quiet", f"--initial-branch={branch}"),
            ("add", "--all"),
            ("-c", "commit.gpgSign=false", "commit", "--quiet", "--no-verify", "--message=Start"),
        ):
            done = _git(repository, *arguments, **_AUTHOR)
            if done.returncode != 0:
                raise CannotStart(f"git {arguments[0]} of the demo data failed: {done.stderr.strip()}")
        remote.push(repository, f"HEAD:refs/heads/{branch}")


def _is_whole_repository(checkout: Path) -> bool:
    """Whether `checkout` itself (no folder above it) is a git work tree with commits and full history."""
    top = _git(checkout, "rev-parse", "--show-toplevel", "--is-shallow-repository", "HEAD")
    answers = top.stdout.splitlines()
    return top.returncode == 0 and Path(answers[0]).resolve() == checkout.resolve() and answers[1] == "false"


def _git(repository: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(repository), *arguments],
        env={**inherited, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
