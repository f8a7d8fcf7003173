"""git as users run it, with a home of its own and without this machine's configuration."""

import asyncio
import os
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import attrs

from tests.support.forge import Forge, Person


@attrs.frozen
class Ran:
    """The result of a command, with both output streams as one text."""

    code: int
    output: str


@attrs.frozen
class Git:
    """git in `folder`."""

    folder: Path

    async def __call__(self, *arguments: str, cwd: Path | None = None, fails: bool = False) -> str:
        """Run git; return its output. Assert that it succeeds (or fails, with `fails`)."""
        ran = await self.run(*arguments, cwd=cwd)
        assert bool(ran.code) == fails, ran.output
        return ran.output

    async def run(self, *arguments: str, cwd: Path | None = None) -> Ran:
        process = await self.start(*arguments, cwd=cwd)
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        return Ran(process.returncode or 0, output.decode(errors="replace").strip())

    async def start(self, *arguments: str, cwd: Path | None = None) -> asyncio.subprocess.Process:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_NAME": "Alice",
            "GIT_AUTHOR_EMAIL": "alice@example.org",
            "GIT_COMMITTER_NAME": "Alice",
            "GIT_COMMITTER_EMAIL": "alice@example.org",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "init.defaultBranch",
            "GIT_CONFIG_VALUE_0": "main",
            "GIT_CONFIG_KEY_1": "advice.detachedHead",
            "GIT_CONFIG_VALUE_1": "false",
        }
        return await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            cwd=cwd or self.folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def init(self, branch: str = "main") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        await self("init", "--quiet", f"--initial-branch={branch}")

    async def commit(self, message: str = "Change", **files: str | bytes) -> str:
        """Write `files` (with `__` for `/` in names) and commit them; return the SHA."""
        return await self.commit_files(
            {name.replace("__", "/"): text for name, text in files.items()}, message
        )

    async def commit_files(self, files: dict[str, str | bytes], message: str = "Change") -> str:
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        await self("add", "--all")
        await self("commit", "--quiet", "--allow-empty", "--message", message)
        return await self("rev-parse", "HEAD")

    async def commit_file(self, clone: Path, name: str, content: str = "content\n") -> str:
        """Commit one new file in another clone; return the SHA."""
        (clone / name).write_text(content)
        await self("add", "--", name, cwd=clone)
        await self("commit", "-qm", f"Add {name}", cwd=clone)
        return await self("rev-parse", "HEAD", cwd=clone)


def git_url(forge: Forge, path: str, person: Person | None = None, token: str | None = None) -> str:
    """Return the URL of a project's repository, with credentials in it."""
    parts = urlsplit(forge.base)
    secret = token or (person.token if person else None)
    host = f"anybody:{quote(secret)}@{parts.netloc}" if secret else parts.netloc
    return urlunsplit(parts._replace(netloc=host, path=f"/{path}.git"))


async def push_files(
    forge: Forge,
    folder: Path,
    project: dict[str, object],
    person: Person,
    files: dict[str, str | bytes],
    branch: str = "main",
) -> str:
    """Push one commit with `files` to a branch of a project; return the SHA."""
    git = Git(folder)
    await git.init(branch)
    sha = await git.commit_files(files)
    await git(
        "push",
        "--quiet",
        git_url(forge, str(project["path_with_namespace"]), person),
        f"HEAD:refs/heads/{branch}",
    )
    return sha
