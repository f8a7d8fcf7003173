"""Structured logs on standard error, one event a line, with everything secret taken out."""

import logging
import re
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, WrappedLogger

LogFormat = Literal["console", "json"]

REDACTED = "[REDACTED]"
#: Names of fields, parameters and headers whose values never reach a log.
SECRET_NAME = re.compile(
    r"token|secret|password|authorization|cookie|credential|private.?key|signature", re.IGNORECASE
)
_SECRET_IN_TEXT = re.compile(
    r"\b(?:flpat|fljob|flso|flinv|flcon|glrt)-[\w.-]+"  # our own tokens, wherever they stand
    r"|(?<=://)[^/@\s\"']+(?=@)"  # userinfo of a URL
    r"|(?<=[?&])(?:[^=&\s]*(?:token|secret|password)[^=&\s]*)=[^&\s\"']*"  # query parameters
    r"|(?<=[?&])(?:[^=&\s]*(?:\[|%5[Bb]))?value(?:\]|%5[Dd])?=[^&\s\"']*"  # of CI/CD variables
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]+"
)


def redact(text: str) -> str:
    """`text` without tokens, URL credentials and secret query parameters."""
    return _SECRET_IN_TEXT.sub(
        lambda m: (
            f"{m[0].split('=', 1)[0]}={REDACTED}" if "=" in m[0] and not m[0].endswith("=") else REDACTED
        ),
        text,
    )


def configure(format_: LogFormat, level: str = "INFO") -> None:
    """Sends structlog's and the standard library's records through one chain to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact_event,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format_ == "json"
        # The default formatter prints local variables, and these hold secrets.
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)


def _redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {
        name: REDACTED if SECRET_NAME.search(name) else _redact_value(value) for name, value in event.items()
    }


def _redact_value(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {k: REDACTED if SECRET_NAME.search(str(k)) else _redact_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact_value(item) for item in value]
    return value
