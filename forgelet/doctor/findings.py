"""What is examined, as far as its settings can be read, and what a check has found: one line each."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import aiohttp
import attrs

from api_server.settings import Settings as ApiSettings
from common.config_errors import ConfigError
from common.logs import redact
from common.settings import SETTINGS_FILE_VARIABLE, Sources, section_of
from forgelet.local import variables
from storage_edge.settings import Settings as EdgeSettings

State = Literal["ok", "warning", "failed"]
#: The worst last.
STATES: tuple[State, ...] = ("ok", "warning", "failed")


def _one_line(text: str) -> str:
    return redact(" ".join(text.split())).rstrip(".")


@attrs.frozen
class Finding:
    """`what` is so, and where that is not well, `remedy` says what to do. Neither holds a secret: URLs lose theirs."""

    state: State
    what: str = attrs.field(converter=_one_line)
    remedy: str = attrs.field(default="", converter=_one_line)

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.what} — {self.remedy}" if self.remedy else self.what

    def as_json(self) -> dict[str, Any]:
        """`{"state", "what", "remedy"}`; nothing to do is null."""
        return {"state": self.state, "what": self.what, "remedy": self.remedy or None}


def ok(what: str) -> Finding:
    """All is well."""
    return Finding("ok", what)


def warning(what: str, remedy: str) -> Finding:
    """The service works, but not as it should, or not for long."""
    return Finding("warning", what, remedy)


def failed(what: str, remedy: str) -> Finding:
    """Something does not work."""
    return Finding("failed", what, remedy)


def of_mistake(
    sentence: str, otherwise: str = "put that right, the process does not start with it"
) -> Finding:
    """What a process would say instead of starting: its sentences end with the remedy, after the last colon, or else
    that is `otherwise`."""
    what, colon, remedy = sentence.rpartition(": ")
    if colon and remedy.startswith(_REMEDIES):
        return failed(what, remedy)
    return failed(sentence, otherwise)


#: How the remedies begin in the sentences of `ConfigError`s.
_REMEDIES = ("install", "upgrade", "restore", "run", "give", "set", "or")


def worst(findings: Iterable[Finding]) -> State:
    """The worst state of all."""
    return max((finding.state for finding in findings), key=STATES.index, default="ok")


ResultT = TypeVar("ResultT")
#: Seconds that one request of a check may take, and one connection.
REQUEST_SECONDS = 5.0

_VARIABLE = re.compile(r"FORGELET_(?:API|EDGE)_\w+")


@attrs.frozen
class DiagnosedInstance:
    """One instance. Without settings of a process (`None`) nothing is known of it: they are broken, or there is no such
    process on this machine."""

    environment: Mapping[str, str]
    api: ApiSettings | None
    edge: EdgeSettings | None
    session: aiohttp.ClientSession
    #: Whether the database can be used as it is, once that is known.
    database_serves: "asyncio.Future[bool]" = attrs.field(
        factory=lambda: asyncio.get_running_loop().create_future()
    )


def read_settings(
    environment: Mapping[str, str],
) -> tuple[ApiSettings | None, EdgeSettings | None, list[Finding]]:
    """The settings in `environment`, and in the file that it names. Variables that are wrong are left out, one by one,
    so that all of them are told and the rest can be looked at. An edge that nothing is said of is not here."""
    findings: list[Finding] = []
    api = _settings(variables.API.sources(environment), findings)
    edge = None
    if _is_given(environment):
        edge = _settings(variables.EDGE.sources(environment), findings)
    if not findings:
        where = environment.get(SETTINGS_FILE_VARIABLE)
        findings.append(ok(f"the settings can be read{f', of {where} too' if where else ''}"))
    return api, edge, findings


def _settings(sources: Sources[Any], findings: list[Finding]) -> Any:
    environment = dict(sources.environment)
    for variable, sentence in sources.unknown():
        findings.append(warning(sentence, "rename or remove it"))
        del environment[variable]
    while True:
        try:
            return attrs.evolve(sources, environment=environment).settings()
        except ConfigError as mistake:
            finding = of_mistake(mistake.message)
            if finding not in findings:  # both processes read one file
                findings.append(finding)
            named = _VARIABLE.search(mistake.message)
            if named is None or environment.pop(named[0], None) is None:
                return None


def _is_given(environment: Mapping[str, str]) -> bool:
    """Whether anything is said of an edge."""
    if any(name.startswith(variables.EDGE.prefix) for name in environment):
        return True
    try:
        return bool(section_of(environment, variables.EDGE.section))
    except ConfigError:  # which the server's settings have told of
        return False


async def in_thread(work: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """What blocks, in a thread that nobody waits for at the end: a name server or a database may never answer."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            outcome, tell = work(*arguments), future.set_result
        except BaseException as problem:
            outcome, tell = problem, future.set_exception  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(settle, tell, outcome)
        except RuntimeError:  # the loop is closed: nobody wants to know any more
            return

    threading.Thread(target=run, daemon=True).start()
    return await future


def unreachable(problem: BaseException) -> str:
    """Why a request was not answered, in a few words without the URL."""
    if isinstance(problem, TimeoutError):
        return "it does not answer in time"
    if isinstance(problem, aiohttp.ClientConnectorError):
        return str(problem.os_error.strerror or problem.os_error)
    return f"{type(problem).__name__} {problem}".strip()
