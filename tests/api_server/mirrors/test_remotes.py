"""Connections to real servers by each protocol: authentication, key pairs, host keys, addresses, and answers of the
source."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from api_server.git import processes
from api_server.git.remote.access import (
    AuthenticationFailedError,
    HostKeyRefusedError,
    Remote,
    RemoteError,
    RemoteTimeoutError,
    remove_leftovers,
    secret_folder,
    write_secret,
)
from api_server.git.remote.connection import (
    Change,
    PushReport,
    Refs,
    connect,
    descents_that_hold,
    parse_listing,
    read_source,
)
from api_server.git.remote.ssh_keys import InvalidHostKeysError, KeyPair, make_key_pair, parse_host_keys
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, Http, SshTarget, process_list


async def push(remote: Remote, source: BareRepository, *changes: Change) -> PushReport:
    async with connect(remote, time_limit=20) as connection, connection.pushing(source.path) as push:
        return await push(changes)


async def test_lists_branches_and_tags_with_what_tags_peel_to_and_marks_symbolic_refs(
    target: BareRepository, http_target: Http
) -> None:
    commit = target.commit("first")
    tag = target.tag_object("v1", commit)
    target.set_refs({MAIN: commit, "refs/tags/v1": tag, "refs/tags/main": commit, "refs/notes/x": commit})
    target.set_refs({"refs/heads/with}": commit})
    target.git("symbolic-ref", "refs/heads/alias", MAIN)
    async with connect(Remote(http_target[1], USER, PASSWORD), time_limit=20) as connection:
        listed = await connection.list_refs()
    names = ["refs/heads/alias", "refs/heads/with}", MAIN, "refs/tags/main"]
    assert listed.ids == dict.fromkeys(names, commit) | {"refs/tags/v1": tag}
    assert (listed.peeled, listed.symbolic) == ({"refs/tags/v1": commit}, {"refs/heads/alias"})


async def test_an_empty_repository_lists_no_refs(target: BareRepository, http_target: Http) -> None:
    async with connect(Remote(http_target[1], USER, PASSWORD), time_limit=20) as connection:
        assert await connection.list_refs() == Refs({})


@pytest.mark.parametrize("answer", [b"x\trefs/heads/main\n", b"warning\n", b"0" * 39 + b"\tx\n"])
def test_what_is_no_list_of_refs_is_refused(answer: bytes) -> None:
    with pytest.raises(RemoteError, match="not a list of refs"):
        parse_listing(answer)


async def test_a_wrong_password_is_told_without_it(target: BareRepository, http_target: Http) -> None:
    async with connect(Remote(http_target[1], USER, "wr@ng pässword"), time_limit=20) as connection:
        with pytest.raises(AuthenticationFailedError) as caught:
            await connection.list_refs()
    assert "Authentication failed" in str(caught.value)
    assert "wr@ng" not in str(caught.value)
    assert "alice" not in str(caught.value)


async def test_a_missing_password_is_not_asked_for(target: BareRepository, http_target: Http) -> None:
    async with connect(Remote(http_target[1]), time_limit=20) as connection:
        with pytest.raises(AuthenticationFailedError):
            await connection.list_refs()


async def test_a_redirect_is_not_followed(target: BareRepository, http_target: Http) -> None:
    http, url = http_target
    http.before = lambda request: (
        None
        if request.path.startswith("/moved")
        else web.Response(status=301, headers={"Location": f"/moved{request.rel_url}"})
    )
    async with connect(Remote(url, USER, PASSWORD), time_limit=20) as connection:
        with pytest.raises(RemoteError, match="301"):
            await connection.list_refs()
    assert not [line for line in http.requests if "/moved" in line]


async def test_a_target_that_hangs_is_given_up_after_the_time_limit(
    target: BareRepository, http_target: Http
) -> None:
    http, url = http_target

    async def hang(_request: web.Request) -> None:
        await asyncio.sleep(60)

    http.before = hang
    async with connect(Remote(url, USER, PASSWORD), time_limit=0.5) as connection:
        with pytest.raises(RemoteTimeoutError, match="took too long"):
            await connection.list_refs()
    async with asyncio.timeout(20):  # killed processes end when the kernel handles them
        while any(url in line for line in process_list()):
            await asyncio.sleep(0.01)


async def test_an_unreachable_target_is_told(target: BareRepository) -> None:
    async with connect(Remote("http://127.0.0.1:9/target.git"), time_limit=20) as connection:
        with pytest.raises(RemoteError, match=r"could not be listed: .*Failed to connect"):
            await connection.list_refs()


async def test_git_connects_to_the_checked_address_and_not_to_what_the_name_resolves_to_now(
    target: BareRepository, http_target: Http, git_url: str
) -> None:
    http, url = http_target
    for reachable, scheme_url in ((True, url), (True, git_url), (False, url)):
        named = scheme_url.replace("127.0.0.1", "target.invalid")
        addresses = ("127.0.0.1",) if reachable else ("127.0.0.2",)
        async with connect(Remote(named, USER, PASSWORD, addresses=addresses), time_limit=20) as connection:
            if reachable:
                assert await connection.list_refs() == Refs({})
            else:
                with pytest.raises(RemoteError, match="Failed to connect"):
                    await connection.list_refs()
    assert {host.partition(":")[0] for host in http.hosts} == {"target.invalid"}


async def test_pushes_by_the_git_protocol(
    source: BareRepository, target: BareRepository, git_url: str
) -> None:
    commit = source.commit("first")
    await push(Remote(git_url, addresses=("127.0.0.1",)), source, Change(MAIN, None, commit))
    assert target.refs() == {MAIN: commit}


@pytest.mark.parametrize("scheme", ["git", "ssh"])
async def test_an_address_that_does_not_answer_leaves_the_others(
    target: BareRepository, git_url: str, ssh_by_key: SshTarget, key_pair: KeyPair, scheme: str
) -> None:
    url = git_url if scheme == "git" else f"ssh://target.invalid:{ssh_by_key.port}{target.path}"
    addresses = ("127.0.0.2", "127.0.0.1")
    remote = Remote(url, ssh_by_key.user, private_key=key_pair.private, addresses=addresses)
    async with connect(remote, time_limit=20) as connection:
        assert await connection.list_refs() == Refs({})


async def test_pushes_by_ssh_with_a_key_and_learns_the_host_key_once(
    source: BareRepository, target: BareRepository, ssh_by_key: SshTarget, key_pair: KeyPair
) -> None:
    commit = source.commit("first")
    remote = Remote(
        f"ssh://target.invalid:{ssh_by_key.port}{target.path}",
        ssh_by_key.user,
        private_key=key_pair.private,
        addresses=("127.0.0.1",),
    )
    async with connect(remote, time_limit=20) as connection:
        assert await connection.list_refs() == Refs({})
        async with connection.pushing(source.path) as push:
            await push([Change(MAIN, None, commit)])
        learnt = connection.learnt_host_keys()
    assert target.refs() == {MAIN: commit}
    key = " ".join(ssh_by_key.host_key.public.split()[:2])
    assert learnt == (f"[target.invalid]:{ssh_by_key.port} {key}",)


@pytest.fixture
def pinned(target: BareRepository, ssh_by_key: SshTarget, key_pair: KeyPair):
    """The SSH target with one pinned host key, in the format of users."""

    def remote(host_key: str) -> Remote:
        keys = parse_host_keys([host_key], "127.0.0.1", ssh_by_key.port)
        return Remote(
            f"ssh://127.0.0.1:{ssh_by_key.port}{target.path}",
            ssh_by_key.user,
            private_key=key_pair.private,
            host_keys=tuple(key.line for key in keys),
        )

    return remote


async def test_a_pinned_host_key_is_accepted_and_nothing_learnt(pinned, ssh_by_key: SshTarget) -> None:
    async with connect(pinned(ssh_by_key.host_key.public), time_limit=20) as connection:
        assert await connection.list_refs() == Refs({})
        assert connection.learnt_host_keys() == ()


async def test_another_host_key_than_the_pinned_one_is_refused(pinned) -> None:
    async with connect(pinned(make_key_pair("other").public), time_limit=20) as connection:
        with pytest.raises(HostKeyRefusedError, match="Host key verification failed"):
            await connection.list_refs()


async def test_an_ssh_key_that_the_target_does_not_know_is_refused(
    target: BareRepository, ssh_by_key: SshTarget
) -> None:
    url = f"ssh://127.0.0.1:{ssh_by_key.port}{target.path}"
    stranger = Remote(url, ssh_by_key.user, private_key=make_key_pair("stranger").private)
    async with connect(stranger, time_limit=20) as connection:
        with pytest.raises(AuthenticationFailedError, match="Permission denied"):
            await connection.list_refs()


async def test_pushes_by_ssh_with_a_password(
    source: BareRepository, target: BareRepository, ssh_by_password: SshTarget
) -> None:
    commit = source.commit("first")
    url = f"ssh://127.0.0.1:{ssh_by_password.port}{target.path}"
    remote = Remote(url, ssh_by_password.user, PASSWORD)
    await push(remote, source, Change(MAIN, None, commit))
    assert target.refs() == {MAIN: commit}


async def test_an_ssh_password_is_in_no_process_list_and_no_trace(
    target: BareRepository,
    ssh_by_password: SshTarget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = tmp_path / "trace"
    plain_environment = processes.child_environment
    monkeypatch.setattr(
        processes,
        "child_environment",
        lambda *arguments: plain_environment(*arguments) | {"GIT_TRACE": str(trace)},
    )
    url = f"ssh://127.0.0.1:{ssh_by_password.port}{target.path}"
    seen: list[str] = []
    async with connect(Remote(url, ssh_by_password.user, PASSWORD), time_limit=20) as connection:
        listing = asyncio.create_task(connection.list_refs())
        while not listing.done():
            seen += await asyncio.to_thread(process_list)
        assert await listing == Refs({})
    assert any("ssh_config" in text for text in seen)
    assert "ssh_config" in trace.read_text()
    assert not any(PASSWORD in text for text in [*seen, trace.read_text()])


async def test_a_wrong_ssh_password_is_told_without_it(
    target: BareRepository, ssh_by_password: SshTarget
) -> None:
    url = f"ssh://127.0.0.1:{ssh_by_password.port}{target.path}"
    async with connect(Remote(url, ssh_by_password.user, "wr@ng"), time_limit=20) as connection:
        with pytest.raises(AuthenticationFailedError, match="Permission denied") as caught:
            await connection.list_refs()
    assert "wr@ng" not in str(caught.value)


async def test_an_ssh_user_name_that_would_be_more_than_a_name_is_refused() -> None:
    remote = Remote("ssh://127.0.0.1/x.git", 'alice"\nProxyCommand touch x')
    with pytest.raises(RemoteError, match="user name"):
        async with connect(remote, time_limit=20):
            pass


async def test_no_file_is_left_behind(tmp_path: Path, target: BareRepository, http_target: Http) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    async with connect(Remote(http_target[1], USER, PASSWORD), time_limit=20, folder=folder) as connection:
        await connection.list_refs()
        (used,) = folder.iterdir()
        assert used.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in used.iterdir()} == {0o600}
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_unless_it_is_used_or_new(tmp_path: Path) -> None:
    for name in ("forgelet-secrets-old", "forgelet-secrets-new", "other"):
        (tmp_path / name).mkdir()
        write_secret(tmp_path / name / "password", "x")
    with secret_folder(tmp_path) as used:
        for folder in (tmp_path / "forgelet-secrets-old", tmp_path / "other", used):
            os.utime(folder, (0, 0))
        remove_leftovers(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"forgelet-secrets-new", "other", used.name}
    assert {path.name for path in tmp_path.iterdir()} == {"forgelet-secrets-new", "other"}


def test_secrets_of_a_process_that_is_killed_are_held_as_long_as_it_lives(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from api_server.git.remote.access import secret_folder\n"
        "with secret_folder(pathlib.Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (folder,) = tmp_path.iterdir()
        os.utime(folder, (0, 0))
        remove_leftovers(tmp_path)
        assert folder.exists()
        process.kill()
        process.wait()
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == []


# With a plus, which forms decode to a space.
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ4OVc1gNaZmxSmVaOhaLwuv2c+wAixj/uqmbk4ps7I6"


def test_a_pair_is_ed25519_and_belongs_together(tmp_path: Path) -> None:
    pair = make_key_pair("mirror@forge.example.org")
    key_type, key, comment = pair.public.split()
    assert (key_type, comment) == ("ssh-ed25519", "mirror@forge.example.org")
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text(pair.private)
    try:
        shown = subprocess.run(
            ["ssh-keygen", "-y", "-f", str(file)], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    assert shown.stdout.split()[:2] == [key_type, key]
    assert "PRIVATE" not in repr(pair)


@pytest.mark.parametrize(
    ("entry", "port", "line"),
    [
        (KEY, None, f"h.example.org {KEY}"),
        (KEY, 22, f"h.example.org {KEY}"),
        (f"{KEY} root@h", 2222, f"[h.example.org]:2222 {KEY}"),
        (f"other.example.org,192.0.2.1 {KEY}\n", 22, f"other.example.org,192.0.2.1 {KEY}"),
        (f"|1|aGFzaA==|aGFzaA== {KEY} note", 22, f"|1|aGFzaA==|aGFzaA== {KEY}"),
        (KEY.replace("+", " "), 22, f"h.example.org {KEY}"),
        (KEY.replace("+", " ") + " root@h", 22, f"h.example.org {KEY}"),
    ],
)
def test_keys_become_known_hosts_lines(entry: str, port: int | None, line: str) -> None:
    assert [key.line for key in parse_host_keys([entry], "h.example.org", port)] == [line]


def test_the_fingerprint_is_the_one_that_ssh_keygen_prints(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(KEY)
    command = ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("ssh-keygen is not installed")
    (key,) = parse_host_keys([KEY], "h", None)
    assert shown.split()[1] == key.fingerprint_sha256


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "nonsense",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        f"h\nssh {KEY}",
        f"@revoked h {KEY}",
        f"-x {KEY}",
        KEY[:-4],
    ],
)
def test_one_bad_key_refuses_all(entry: str) -> None:
    with pytest.raises(InvalidHostKeysError, match=r"^Invalid SSH host key\(s\): "):
        parse_host_keys([KEY, entry], "h", None)


def test_eleven_keys_are_too_many() -> None:
    with pytest.raises(InvalidHostKeysError, match=r"^too many host keys \(maximum is 10\)$"):
        parse_host_keys([KEY] * 11, "h", None)


@pytest.mark.parametrize("comment", ["", " host"])
def test_pluses_at_the_end_and_beside_each_other_survive_a_form(comment: str) -> None:
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIOHUtQl/FMAFHZEC9oI8aQkyelbM8+d7yJabujiHmhK+"
    sent = f"ssh-ed25519 {key}{comment}".replace("+", " ")
    (parsed,) = parse_host_keys([sent], "h.example.org", 22)
    assert parsed.line == f"h.example.org ssh-ed25519 {key}"


UNKNOWN = "1" * 40


async def test_reads_branches_tags_and_the_default_branch(source: BareRepository) -> None:
    commit = source.commit("first")
    tag = source.tag_object("v1", commit)
    source.set_refs(
        {"refs/heads/a b".replace(" ", "é"): commit, "refs/heads/main": commit, "refs/tags/v1": tag}
    )
    source.set_refs({"refs/merge-requests/1/head": commit})
    source.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    read = await read_source(source.path)
    assert read.default_branch == "refs/heads/main"
    names = ["refs/heads/aéb", "refs/heads/alias", "refs/heads/main"]
    ids = dict.fromkeys(names, commit) | {"refs/tags/v1": tag}
    assert read.refs == Refs(ids, symbolic=frozenset({"refs/heads/alias"}))


async def test_an_empty_repository_has_no_default_branch(source: BareRepository) -> None:
    read = await read_source(source.path)
    assert (read.refs, read.default_branch) == (Refs({}), None)


async def test_knows_which_commits_descend_from_which(source: BareRepository) -> None:
    first = source.commit("first")
    left, right = source.commit("left", first), source.commit("right", first)
    merge = source.commit("merge", left, right)
    tag = source.tag_object("v1", left)
    holding = {(first, first), (first, merge), (right, merge), (tag, merge), (first, tag), (left, tag)}
    others = {(merge, first), (left, right), (UNKNOWN, merge), (first, UNKNOWN), (right, tag)}
    assert await descents_that_hold(source.path, holding | others) == holding
    assert await descents_that_hold(source.path, []) == set()
