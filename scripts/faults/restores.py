"""Back up a forgelet of its own, wipe it, restore it, and compare every answer with the one before."""

import asyncio
import contextlib
import hashlib
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import attrs
import click
import orjson

from api_server.api import ROUTES
from forgelet.local.embedded_postgres import autocommitting
from forgelet.testing.api import Api, Connections, answers
from scripts.faults import checks, edge_load, job_load
from scripts.faults.environment import Environment, running_environment
from scripts.faults.repository_load import mirror_of
from scripts.faults.scenario import Load
from scripts.harness.processes import run_forgelet

#: Fields that change between two readings of the same entity, because of the reading itself or with time.
MOVING = frozenset(
    {"last_used_at", "last_activity_at", "current_sign_in_at", "contacted_at", "duration", "queued_duration"}
)
_PARAMETER = re.compile(r"{(\w+)(?::(?:[^{}]|{[^{}]*})*)?}")
#: The field of a list's entries that stands in paths, if it is not `id`.
_NAMES = {
    "merge_request_iid": ("iid",),
    "name": ("name",),
    "key": ("key",),
    "sha": ("id",),
    "tag_name": ("tag_name",),
    "ref": ("name",),
}
#: Lists of entities that are not listed at the path above them.
_LISTS = {"ref": "/projects/{id}/repository/branches", "sha": "/projects/{id}/repository/commits"}
_FIXED = {"path": ["README.md"], "format": ["tar.gz"], "suffix_path": [""], "job_token": []}
#: Queries without which these endpoints give no result.
_QUERIES = {
    "/projects/{id}/repository/compare": "from=main&to=main",
    "/projects/{id}/repository/merge_base": "refs=main,main",
    "/projects/{id}/repository/files/{path}": "ref=main",
    "/projects/{id}/repository/files/{path}/raw": "ref=main",
}
_MAX_OF_EACH = 40
_PAGES = 3


class Crawl:
    """The answers of one service to its administrator."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lists: dict[str, list[Any]] = {}

    def answers(self) -> dict[str, tuple[int, str]]:
        """Return the status and the text of each path's answer: JSON without changing fields, and the size and digest
        of anything else."""
        answers = {}
        for route in (route for routes in ROUTES for route in routes.routes):
            if route.method == "GET" and route.access.kind != "job":
                plain = _PARAMETER.sub(lambda match: "{" + match[1] + "}", route.path)
                for path in self._paths(plain, ""):
                    query = _QUERIES.get(plain, "per_page=100" if path.endswith("s") else "")
                    url = f"{path}?{query}" if query else path
                    answers[url] = self._answer(url)
        return answers

    def _answer(self, path: str) -> tuple[int, str]:
        answer = self._api.ask("GET", path)
        if answer.headers.get_content_type() == "application/json":
            body = orjson.dumps(without_moving(answer.content), option=orjson.OPT_SORT_KEYS)
            return answer.status, body.decode()
        body = answer.content or b""
        return answer.status, f"{len(body)} bytes, {hashlib.sha256(body).hexdigest()}"

    def _paths(self, rest: str, prefix: str) -> Iterator[str]:
        """Yield all paths for the template `prefix` + `rest`, of which `prefix` has been filled in."""
        match = re.search(r"{(\w+)}", rest)
        if match is None:
            yield prefix + rest
            return
        above = prefix + rest[: match.start()].rstrip("/")
        for value in self._values(match[1], above):
            yield from self._paths(rest[match.end() :], f"{above}/{quote(str(value), safe='')}")

    def _values(self, parameter: str, above: str) -> list[Any]:
        if parameter in _FIXED:
            return _FIXED[parameter]
        project = re.match(r"/projects/\d+", above)
        path = above
        if parameter in _LISTS and project:
            path = _LISTS[parameter].replace("/projects/{id}", project[0])
        names = _NAMES.get(parameter, ("id", "name"))
        entities = [entity for entity in self._listed(path) if isinstance(entity, Mapping)]
        values = [next((entity[name] for name in names if name in entity), None) for entity in entities]
        return [value for value in values if value is not None][:_MAX_OF_EACH]

    def _listed(self, path: str) -> list[Any]:
        if path not in self._lists:
            self._lists[path] = []
            for page in range(1, _PAGES + 1):
                answer = self._api.ask("GET", f"{path}?per_page=100&page={page}&order_by=id&sort=asc")
                if answer.status == 400:
                    answer = self._api.ask("GET", f"{path}?per_page=100&page={page}")
                items = answer.content if answer.status == 200 and isinstance(answer.content, list) else []
                self._lists[path] += items
                if len(items) < 100:
                    break
        return self._lists[path]


def without_moving(body: Any) -> Any:
    """Return an answer without the fields that change between two readings."""
    if isinstance(body, dict):
        return {name: without_moving(value) for name, value in body.items() if name not in MOVING}
    return [without_moving(item) for item in body] if isinstance(body, list) else body


def differences(before: Mapping[str, tuple[int, str]], after: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return one line for each path whose answers differ."""
    return [
        f"{path}: {_short(before.get(path), after.get(path))}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]


def _short(one: tuple[int, str] | None, other: tuple[int, str] | None) -> str:
    if one is None or other is None:
        return "only after" if one is None else "only before"
    index = next((n for n, pair in enumerate(zip(one[1], other[1], strict=False)) if pair[0] != pair[1]), 0)
    around = slice(max(0, index - 40), index + 60)
    return f"{one[0]} {one[1][around]!r} became {other[0]} {other[1][around]!r}"


#: Faults in the ledger: before the backup, and from the moment on at which an operation may be too late for the
#: backup.
BEFORE, MEANWHILE = 0, 1
#: Kinds that depend on the later state of jobs: jobs that run in the backup have no result after a restore.
_OF_LATER = frozenset({"pipeline", "hand-out"})
#: Seconds to wait for the work that a wiped service had begun.
TAKE_OVER_SECONDS = 20.0
Reporter = Callable[[str], None]


@attrs.define
class Drill:
    """One service, its backups, and the problems found."""

    environment: Environment
    report: Reporter
    restored: int = 0
    problems: list[str] = attrs.field(factory=list)

    @property
    def passphrase_file(self) -> Path:
        file = self.environment.folder / "passphrase"
        if not file.exists():
            file.write_text("correct horse battery staple\n")
        return file

    def back_up(self, name: str) -> Path:
        """Back up the running service; return the file."""
        file = self.environment.folder / name
        arguments = ["backup", str(file), "--passphrase-file", str(self.passphrase_file), "--verify"]
        start = time.monotonic()
        self.report(run_forgelet(arguments, self.environment.api.environment))
        self.report(f"... in {time.monotonic() - start:.1f} s")
        return file

    async def wipe_and_restore(self, file: Path) -> None:
        """End the API server, remove its files, and restore into a new database. The edge keeps its content."""
        environment = self.environment
        await environment.api.__aexit__()
        folder = environment.data.part("api")
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.restored += 1
        before = environment.api.environment["FORGELET_API_DATABASE_URL"]
        url = await asyncio.to_thread(new_database, before, f"restored_{self.restored}")
        environment.api.environment["FORGELET_API_DATABASE_URL"] = url
        secret = ["--passphrase-file", str(self.passphrase_file)]
        arguments = ["restore", str(file), "--data-dir", str(folder), *secret]
        variables = environment.api.environment | {"FORGELET_DATABASE_URL": url}
        self.report(await asyncio.to_thread(run_forgelet, arguments, variables))
        await environment.api.start_again()
        if not await environment.ready():
            log = environment.api.newest_log().read_text()
            raise RuntimeError(f"The restored service is not ready: {log[-2000:]}")

    async def look(self) -> None:
        """Run the commands that check the content."""
        for arguments in (["audit", "verify"], ["store", "check"], ["repository", "check"]):
            try:
                text = await asyncio.to_thread(run_forgelet, arguments, self.environment.api.environment)
                self.report(f"{' '.join(arguments)}: {text}")
            except RuntimeError as problem:
                self.problems.append(str(problem))

    async def crawl(self) -> dict[str, tuple[int, str]]:
        root = self.environment.root
        with contextlib.closing(Connections(root.base.removesuffix("/api/v4"))) as connections:
            answers = await asyncio.to_thread(Crawl(Api(connections, root.token)).answers)
        self.problems += [f"{path}: {status}" for path, (status, _) in answers.items() if status >= 500]
        return answers


def new_database(url: str, name: str) -> str:
    with autocommitting(url) as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def drill_under_load(drill: Drill, load: Load, seconds: float) -> None:
    """Back up under load. All operations that were acknowledged before the backup began have to be in it."""
    environment, ledger = drill.environment, drill.environment.ledger
    async with load.working():
        await asyncio.sleep(seconds)
        ledger.fault = MEANWHILE
        file = await asyncio.to_thread(drill.back_up, "under-load.backup")
        await asyncio.sleep(seconds / 4)  # operations of this time must not be in the backup
    acknowledged = {operation.kind for operation in ledger.operations if operation.outcome == "acknowledged"}
    await drill.wipe_and_restore(file)
    await drill.look()
    await load.count_present(without=_OF_LATER)
    ledger.present["pipeline"] = await _pipelines(environment)
    lost_writes = [operation for operation in ledger.lost() if operation.fault == BEFORE]
    before = sum(
        operation.fault == BEFORE and operation.outcome == "acknowledged" for operation in ledger.operations
    )
    drill.report(
        f"{before} writes of {len(acknowledged)} kinds were acknowledged before; {len(lost_writes)} are lost"
    )
    drill.problems += [f"lost: {operation.kind} {operation.identity}" for operation in lost_writes]
    drill.problems += [f"twice: {operation.kind} {operation.identity}" for operation in ledger.doubled()]
    await drill.crawl()


async def _pipelines(environment: Environment) -> Counter[str]:
    """Count the pipelines by their names in the load."""
    counts: Counter[str] = Counter()
    for pipeline in await environment.owner.all(f"{job_load.HERE}/pipelines"):
        answer = await environment.owner.ask(
            "list", "GET", f"{job_load.HERE}/pipelines/{pipeline['id']}/variables"
        )
        counts += Counter(
            variable["value"]
            for variable in (answer.json if answer else ())
            if variable["key"] == job_load.MARK
        )
    return counts


async def drill_at_rest(drill: Drill) -> None:
    """Check that every answer is the same before and after, and that clones and files at the edges are too."""
    await asyncio.sleep(5)  # until background work has ended
    before, files = await drill.crawl(), await clones(drill, "before")
    at_edges = await served(drill.environment)
    file = await asyncio.to_thread(drill.back_up, "at-rest.backup")
    await drill.wipe_and_restore(file)
    after = await drill.crawl()
    problems = differences(before, after)
    drill.report(f"{len(before)} answers before, {len(after)} after, {len(problems)} differ")
    drill.problems += problems
    if await clones(drill, "after") != files:
        drill.problems.append("clones differ")
    if await served(drill.environment) != at_edges:
        drill.problems.append("the edges serve other files")
    await drill.look()
    await checks.check_repositories(drill.environment)


async def clones(drill: Drill, stage: str) -> dict[str, str]:
    """Return the refs of a mirror clone of each project."""
    environment, refs = drill.environment, {}
    for project in await environment.owner.all("/projects?owned=true"):
        name = project["path"]
        folder = environment.folder / "scratch" / f"{stage}-{name}-{drill.restored}"
        clone = await mirror_of(folder, environment.git_url(name))
        refs[name] = await clone("for-each-ref")
    return refs


async def served(environment: Environment) -> list[tuple[int, bytes] | None]:
    """Return the status and the content that each edge answers for the files of the load."""
    answers = [
        await reader.read("edge read", path, expected={404})
        for reader in edge_load.EdgeReader.at_each(environment)
        for path in (edge_load.RAW, edge_load.PRIVATE_RAW)
    ]
    return [None if answer is None else (answer.status, answer.body) for answer in answers]


async def run_drill(report: Reporter, seconds: float) -> list[str]:
    """Run both drills; return the problems found."""
    async with running_environment(report) as environment:
        drill = Drill(environment, report)
        load = Load(environment, timeout=TAKE_OVER_SECONDS)
        await load.prepare()
        await drill_under_load(drill, load, seconds)
        report(f"{len(drill.problems)} things are wrong after the backup under load")
        await drill_at_rest(drill)
        drill.problems += [text for _, text in environment.ledger.findings]
        if not await asyncio.to_thread(answers, f"{environment.stranger.base}/-/readiness"):
            drill.problems.append("the edge is not ready")
    return drill.problems


@click.command()
@click.option("--seconds", default=30.0, show_default=True, help="Seconds of load before the backup.")
def main(seconds: float) -> None:
    """Back up a forgelet of its own under load and at rest, wipe it and restore it. The exit status is 1 if anything
    is missing or an answer differs from the one before."""
    problems = asyncio.run(run_drill(click.echo, seconds))
    for problem in problems[:100]:
        click.echo(f"WRONG: {problem}")
    click.echo(f"{len(problems)} things are wrong." if problems else "Everything is as it was.")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(prog_name="scripts/restores/run")
