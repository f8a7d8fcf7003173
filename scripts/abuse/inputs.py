"""Single requests that are made to be dear: what each sends grows with a number, in the worst shape that is known.

`docs/security.md` lists the places where strangers' bytes are worked on; most have an input here. The same table is
sent to a service of its own by `scripts/abuse/run` and, in short, by the tests.
"""

import base64
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs
import orjson

from scripts.abuse import jobs, packs
from scripts.abuse.jobs import Job, Request
from scripts.abuse.place import Place, again_and_again, session

#: What has been compiled once is remembered.
_numbers = count()
FORM = "application/x-www-form-urlencoded"
_BOUNDARY = "abuse"


#: Gives the request of a size; some need a job, or a project's file, to be made for it first.
Make = Callable[[Place, aiohttp.ClientSession, int], Awaitable[Request]]


@attrs.frozen
class Input:
    """`largest` is the number that the attack uses; a quarter and a half of it show how the cost grows. A request that
    works `once` is made anew each time: it ends a job, for instance."""

    largest: int
    make: Make
    once: bool = False


def _api(place: Place, path: str) -> str:
    return f"{place.api_url}/api/v4{path}"


def _json(place: Place, path: str, value: Any, *, signed_in: bool = False) -> Request:
    headers = {"Content-Type": "application/json"} | (place.as_attacker if signed_in else {})
    return Request(
        "POST", path if path.startswith("http") else _api(place, path), orjson.dumps(value), headers
    )


def _simple(largest: int, make: Callable[[Place, int], Request]) -> Input:
    async def made(place: Place, _: aiohttp.ClientSession, number: int) -> Request:
        return make(place, number)

    return Input(largest, made)


def _of_strangers(largest: int, path: str, value: Callable[[int], Any]) -> Input:
    """JSON without a token."""
    return _simple(largest, lambda place, number: _json(place, path, value(number)))


def _of_mine(largest: int, path: str, value: Callable[[int], Any]) -> Input:
    """JSON of an Owner to a path below her project."""
    return _simple(
        largest,
        lambda place, number: _json(place, place.project(place.mine) + path, value(number), signed_in=True),
    )


def _of_form(largest: int, path: str, text: Callable[[int], str]) -> Input:
    return _simple(
        largest,
        lambda place, number: Request(
            "POST", place.api_url + path, text(number).encode(), {"Content-Type": FORM}
        ),
    )


def _get(
    largest: int,
    path: Callable[[Place, int], str],
    headers: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> Input:
    return _simple(
        largest,
        lambda place, number: Request(
            "GET", path(place, number), b"", {**place.as_attacker, **headers(number)}
        ),
    )


def _lint(largest: int, file: Callable[[int], str]) -> Input:
    return _of_mine(largest, "/ci/lint", lambda number: {"content": file(number)})


def _multipart(place: Place, number: int) -> Request:
    part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    body = part * number + f"--{_BOUNDARY}--\r\n"
    return Request("POST", f"{place.api_url}/-/sign_in", body.encode(), headers)


def _git(place: Place, service: str, body: bytes) -> Request:
    credentials = base64.b64encode(f"attacker:{place.attacker}".encode()).decode()
    headers = {
        "Authorization": f"Basic {credentials}",
        "Content-Type": f"application/x-git-{service}-request",
    }
    return Request("POST", f"{place.api_url}/{place.mine}.git/git-{service}", body, headers)


def _push(place: Place, number: int) -> Request:
    commands = [f"{'0' * 40} {index:040x} refs/heads/{'a/' * 20}{index}" for index in range(1, number + 1)]
    first, *others = (command.encode() for command in commands)
    lines = [first + b"\0 report-status\n", *(other + b"\n" for other in others)]
    return _git(place, "receive-pack", b"".join(map(packs.packet, lines)) + b"0000")


def _fetch(place: Place, number: int) -> Request:
    lines = b"".join(packs.packet(f"want {index:040x}\n".encode()) for index in range(1, number + 1))
    return _git(place, "upload-pack", lines + b"0000" + packs.packet(b"done\n"))


def _lfs(place: Place, number: int) -> Request:
    request = _git(place, "upload-pack", b"")
    objects = [{"oid": f"{index:064x}", "size": 1} for index in range(number)]
    body = orjson.dumps({"operation": "download", "objects": objects})
    headers = {**request.headers, "Content-Type": "application/vnd.git-lfs+json"}
    return Request("POST", f"{place.api_url}/{place.mine}.git/info/lfs/objects/batch", body, headers)


async def _masked_log(place: Place, http: aiohttp.ClientSession, number: int) -> Request:
    """Secrets that begin alike, and a log of their beginnings."""
    project = place.project(place.mine)
    for key, value in (("SHORT", "b" * 8), ("LONG", "a" * 9990 + "0" * 8)):
        body = {"key": key, "value": value, "masked": True}
        async with http.post(f"{project}/variables", json=body, headers=place.as_attacker) as answer:
            await answer.read()  # 400 where it is there already
    job = await jobs.running(place, http, "job:\n  script: ['true']\n")
    return job.log(b"a" * number)


async def _coverage(place: Place, http: aiohttp.ClientSession, number: int) -> Request:
    """A line of digits, in which the last match is looked for when the job ends."""
    job = await jobs.running(place, http, "job:\n  coverage: '/\\d/'\n  script: ['true']\n")
    await job.log(b"1" * number).send(http)
    return attrs.evolve(job.finish(), worked_on=number)


async def _test_report(place: Place, http: aiohttp.ClientSession, number: int) -> Request:
    """A default value of an attribute that each test case would have."""
    file = "job:\n  script: ['true']\n  artifacts:\n    reports:\n      junit: report.xml\n"
    job = await jobs.running(place, http, file)
    document = f'<!DOCTYPE testsuites [<!ATTLIST testcase classname CDATA "{"a" * 100 * number}">]>'
    cases = '<testcase name="a"/>' * number
    document += f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
    await job.upload({"report.xml": document}, "junit").send(http)
    await job.finish().send(http)
    return _report_of(place, job, len(document))


def _report_of(place: Place, job: Job, worked_on: int) -> Request:
    url = f"{place.project(place.mine)}/pipelines/{job.pipeline}/test_report"
    return Request("GET", url, b"", place.as_attacker, worked_on)


async def _names_of_jobs(place: Place, http: aiohttp.ClientSession, number: int) -> Request:
    """A name that the expression for parts of a job (`name 1/2`) tries at each of its characters."""
    file = f"'{'1 ' * (number // 2)}x':\n  script: ['true']\n  artifacts:\n    reports:\n      junit: report.xml\n"
    job = await jobs.running(place, http, file)
    await job.upload({"report.xml": "<testsuites/>"}, "junit").send(http)
    await job.finish().send(http)
    return _report_of(place, job, number)


async def _artifact_members(place: Place, http: aiohttp.ClientSession, number: int) -> Request:
    """A look at one folder of an archive of very many files, by a stranger."""
    file = "job:\n  script: ['true']\n  artifacts:\n    paths: [files]\n"
    job = await jobs.running(place, http, file)
    upload = job.upload({f"files/{index:06}.txt": "x" for index in range(number)})
    await upload.send(http)
    await job.finish().send(http)
    url = f"{place.api_url}/{place.mine}/-/jobs/{job.id}/artifacts/browse/files"
    return Request("GET", url, worked_on=upload.size)


async def _dotenv(place: Place, http: aiohttp.ClientSession, number: int) -> Request:
    file = "job:\n  script: ['true']\n  artifacts:\n    reports:\n      dotenv: build.env\n"
    job = await jobs.running(place, http, file)
    return job.upload({"build.env": "".join(f"A{index}=b\n" for index in range(number))}, "dotenv")


def _edge_file(place: Place, _: int = 0) -> str:
    return f"{place.edge_url}/{place.public}/-/raw/main/src/1/1.txt"


#: By name, as the command line and docs/security.md have them.
INPUTS: dict[str, Input] = {
    "list-items": _of_strangers(50_000, "/runners", lambda n: {"token": "x", "tag_list": [{}] * n}),
    "list-objects": _of_mine(
        50_000,
        "/repository/commits",
        lambda n: {"branch": "a", "commit_message": "b", "actions": [{}] * n},
    ),
    "comma-separated": _of_mine(
        50_000, "/invitations", lambda n: {"access_level": 10, "user_id": "x," * n + "x"}
    ),
    "form-keys": _of_form(20_000, "/api/v4/runners", lambda n: "&".join(f"a{i}=b" for i in range(n))),
    "form-lists": _of_form(20_000, "/api/v4/runners", lambda n: "&".join(["tag_list[]=b"] * n)),
    "form-nesting": _of_form(20_000, "/api/v4/runners", lambda n: f"info{'[a]' * n}=b"),
    "json-nesting": _simple(
        400_000,
        lambda place, n: Request(
            "POST", _api(place, "/runners"), b"[" * n, {"Content-Type": "application/json"}
        ),
    ),
    "json-keys": _of_strangers(20_000, "/runners", lambda n: {f"a{i}": 1 for i in range(n)}),
    "multipart-parts": _simple(1_000, _multipart),
    "deep-path": _get(3_800, lambda place, n: f"{place.api_url}{'/a' * n}"),
    "deep-api-path": _get(3_800, lambda place, n: _api(place, f"/projects/1/repository/tree{'/a' * n}")),
    "query-fields": _get(
        1_900, lambda place, n: _api(place, "/projects?") + "&".join(f"a{i % 10}=" for i in range(n))
    ),
    "cookies": _get(
        1_900,
        lambda place, _: f"{place.api_url}/-/sign_in",
        lambda n: {"Cookie": "; ".join(f"a{i % 10}=" for i in range(n))},
    ),
    "tree-path": _get(
        3_000, lambda place, n: f"{place.project(place.public)}/repository/tree?path={'a/' * n}a"
    ),
    "ref-name": _get(
        3_000, lambda place, n: f"{place.project(place.public)}/repository/commits/{quote('a/' * n + 'a')}"
    ),
    "raw-path": _get(3_000, lambda place, n: f"{place.api_url}/{place.public}/-/raw/main/{'a/' * n}a"),
    "push-commands": _simple(20_000, _push),
    "fetch-wants": _simple(40_000, _fetch),
    "lfs-objects": _simple(40_000, _lfs),
    "deep-files": _of_mine(
        1_000,
        "/repository/commits",
        lambda n: {
            "branch": "main",
            "commit_message": "a",
            "actions": [
                {"action": "create", "file_path": f"{i}/{'a/' * 1_000}a", "content": ""} for i in range(n)
            ],
        },
    ),
    "commit-message": _of_mine(
        4_000_000,
        "/repository/commits",
        lambda n: {
            "branch": "main",
            "commit_message": "a\n" * (n // 2),
            "actions": [{"action": "update", "file_path": "README.md", "content": "a"}],
        },
    ),
    "masked-log": Input(256 * 1024, _masked_log, once=True),
    "coverage": Input(128 * 1024, _coverage, once=True),
    "test-report": Input(3_000, _test_report, once=True),
    "job-name": Input(240, _names_of_jobs, once=True),
    "artifact-browsing": Input(60_000, _artifact_members),
    "dotenv": Input(20_000, _dotenv, once=True),
    "regular-expressions": _lint(
        12,
        lambda n: (
            "a:\n  script: [b]\n  only: ["
            + ", ".join(f"'/\\pL{{400}}{next(_numbers)}/'" for _ in range(n))
            + "]\n"
        ),
    ),
    "yaml-aliases": _lint(
        20_000, lambda n: "a: &a {script: [b]}\nb:\n  script: [" + ", ".join(["*a"] * n) + "]\n"
    ),
    "yaml-keys": _lint(
        10_000, lambda n: "a:\n  script: [b]\n  variables:\n" + "".join(f"    V{i}: b\n" for i in range(n))
    ),
    "rules": _lint(10_000, lambda n: "a:\n  script: [b]\n  rules:\n    - if: '" + "$A || " * n + "$B'\n"),
    "matrix": _lint(
        400,
        lambda n: (
            "a:\n  script: [b]\n  parallel:\n    matrix:\n      - A: ["
            + ", ".join(map(str, range(n)))
            + "]\n"
        ),
    ),
    "cron": _of_mine(
        20_000,
        "/pipeline_schedules",
        lambda n: {"description": "a", "ref": "main", "cron": ",".join(["*/1"] * n) + " * * * *"},
    ),
    "addresses": _of_mine(
        20_000, "/invitations", lambda n: {"access_level": 10, "email": "a@b," * n + "a.a.a.a.a@b"}
    ),
    "mirror-url": _of_mine(
        400_000, "/remote_mirrors", lambda n: {"url": "https://" + "a:" * (n // 2) + "@example.org/a.git"}
    ),
    "edge-ranges": _get(
        3_000, _edge_file, lambda n: {"Range": "bytes=" + ",".join(f"{i * 2}-{i * 2}" for i in range(n // 2))}
    ),
    "edge-tags": _get(3_000, _edge_file, lambda n: {"If-None-Match": '"a' * n}),
    "edge-directives": _get(3_000, _edge_file, lambda n: {"Cache-Control": 'a="' * n}),
    "edge-codings": _get(3_000, _edge_file, lambda n: {"Accept-Encoding": "a;q=0," * (n // 2)}),
    "edge-path": _get(3_000, lambda place, n: f"{place.edge_url}/a{'/-/raw' * (n // 6)}/main/a"),
    "edge-query": _get(3_000, lambda place, n: f"{_edge_file(place)}?{'inline=true&' * (n // 12)}"),
}


async def attack(name: str, place: Place, answers: "Counter[str]") -> None:
    """Four clients, each of which sends the largest form of the input again and again."""
    given = INPUTS[name]
    async with session() as http:
        made = None if given.once else await given.make(place, http, given.largest)

        async def send(_number: int) -> str:
            request = made or await given.make(place, http, given.largest)
            return await request.send(http)

        await again_and_again(4, send, answers)
