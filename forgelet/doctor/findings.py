"""The checked instance, as far as its settings can be read, and the findings of checks, one line each."""

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
#: The states from best to worst.
STATES: tuple[State, ...] = ("ok", "warning", "failed")


def _one_line(text: str) -> str:
    return redact(" ".join(text.split())).rstrip(".")


@attrs.frozen
class Finding:
    """A finding: `what` was found and, if it is a problem, its `remedy`. Secrets are removed from both."""

    state: State
    what: str = attrs.field(converter=_one_line)
    remedy: str = attrs.field(default="", converter=_one_line)

    @property
    def text(self) -> str:
        """The finding as one line for people."""
        return f"{self.what} — {self.remedy}" if self.remedy else self.what

    def as_json(self) -> dict[str, Any]:
        """Return `{"state", "what", "remedy"}`; without a remedy it is null."""
        return {"state": self.state, "what": self.what, "remedy": self.remedy or None}


def ok(what: str) -> Finding:
    """Report that something is right."""
    return Finding("ok", what)


def warning(what: str, remedy: str) -> Finding:
    """Report that the service works, but not well or not for long."""
    return Finding("warning", what, remedy)


def failed(what: str, remedy: str) -> Finding:
    """Report that something does not work."""
    return Finding("failed", what, remedy)


def from_error(
    sentence: str, otherwise: str = "put that right, the process does not start with it"
) -> Finding:
    """Report an error with which a process would refuse to start. The remedy is the text after the last colon if that
    begins like one, and `otherwise` if not."""
    what, colon, remedy = sentence.rpartition(": ")
    if colon and remedy.startswith(_REMEDIES):
        return failed(what, remedy)
    return failed(sentence, otherwise)


#: The first words of remedies in the sentences of `ConfigError`.
_REMEDIES = ("install", "upgrade", "restore", "run", "give", "set", "or")


def worst(findings: Iterable[Finding]) -> State:
    """Return the worst state of all findings."""
    return max((finding.state for finding in findings), key=STATES.index, default="ok")


ResultT = TypeVar("ResultT")
#: Maximum number of seconds for one request or one connection of a check.
REQUEST_SECONDS = 5.0

_VARIABLE = re.compile(r"FORGELET_(?:API|EDGE)_\w+")


@attrs.frozen
class DiagnosedInstance:
    """The checked instance. The settings of a process are None if they are invalid, or if it does not run on this
    machine."""

    environment: Mapping[str, str]
    api: ApiSettings | None
    edge: EdgeSettings | None
    session: aiohttp.ClientSession
    #: Whether `forgelet up` runs it, and not systemd or somebody else with settings of their own.
    is_local: bool = False
    #: Whether the database can be used; the database's check sets this.
    database_serves: "asyncio.Future[bool]" = attrs.field(
        factory=lambda: asyncio.get_running_loop().create_future()
    )


def read_settings(
    environment: Mapping[str, str],
) -> tuple[ApiSettings | None, EdgeSettings | None, list[Finding]]:
    """Return both processes' settings from `environment` and its settings file, and the findings about them. Invalid
    variables are removed one by one, so that each is reported and the rest can be checked. The edge's settings are None
    if none are given."""
    findings: list[Finding] = []
    api = _settings(variables.API.sources(environment), findings)
    edge = None
    if _is_given(environment):
        edge = _settings(variables.EDGE.sources(environment), findings)
    if not findings:
        file = environment.get(SETTINGS_FILE_VARIABLE)
        findings.append(ok(f"the settings can be read{f', of {file} too' if file else ''}"))
    return api, edge, findings


def _settings(sources: Sources[Any], findings: list[Finding]) -> Any:
    environment = dict(sources.environment)
    for variable, sentence in sources.unknown():
        findings.append(warning(sentence, "rename or remove it"))
        del environment[variable]
    while True:
        try:
            return attrs.evolve(sources, environment=environment).settings()
        except ConfigError as error:
            finding = from_error(error.message)
            if finding not in findings:  # both processes read the same file
                findings.append(finding)
            match = _VARIABLE.search(error.message)
            if match is None or environment.pop(match[0], None) is None:
                return None


def _is_given(environment: Mapping[str, str]) -> bool:
    """Return whether there are any settings of an edge."""
    if any(name.startswith(variables.EDGE.prefix) for name in environment):
        return True
    try:
        return bool(section_of(environment, variables.EDGE.section))
    except ConfigError:  # reported with the server's settings
        return False


async def in_thread(work: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Run a blocking function in a thread that does not delay the end of the program, because name servers and
    databases may never answer."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            outcome, settle_with = work(*arguments), future.set_result
        except BaseException as problem:
            outcome, settle_with = problem, future.set_exception  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(settle, settle_with, outcome)
        except RuntimeError:  # the loop is closed, so nobody waits for the result
            return

    threading.Thread(target=run, daemon=True).start()
    return await future


def unreachable(problem: BaseException) -> str:
    """Return in a few words, without the URL, why a request was not answered."""
    if isinstance(problem, TimeoutError):
        return "it does not answer in time"
    if isinstance(problem, aiohttp.ClientConnectorError):
        return str(problem.os_error.strerror or problem.os_error)
    return f"{type(problem).__name__} {problem}".strip()
