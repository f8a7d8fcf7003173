"""Which of schemathesis's findings are none: what a description cannot say of requests that fit it."""

import json
import re
from typing import Any
from urllib.parse import urlsplit

#: Refusals for how things are rather than for what was sent, beside those that schemathesis knows.
_STATE_FORBIDS = frozenset({405, 406, 412, 413, 416, 422})
#: Parameters that depend on each other: said in words, since generated clients cannot have it in their types.
_DEPENDENT = re.compile(
    r"(is|are) missing\b|must be provided$|are mutually exclusive$|^allowed_to_\w+ does not have"
)
#: What GitLab has and this service has not: `inputs is not supported by this service`.
_UNSUPPORTED = re.compile(r"(is|are) not supported by this service$")
#: Of formats that JSON Schema has no name for, or another idea of: which characters are blanks.
_FORMAT = re.compile(r"contains an invalid email address$|is empty$")
#: Lists have orders of their own.
_ORDER = re.compile(r"^order_by does not have a valid value$")


def counts(failure: str, case: Any, status: int, body: bytes) -> bool:
    """Whether the failure (the name of its class) of the case is one."""
    if failure == "RejectedPositiveData":
        return not _is_about_state(status, body)
    if failure == "UnsupportedMethodResponse":
        return not _is_another_operation(case)
    return True


def _is_about_state(status: int, body: bytes) -> bool:
    """A 400 with `error` says that a request cannot be read, one with `message` that it cannot be done."""
    if status != 400:
        return status in _STATE_FORBIDS
    told = json.loads(body)
    said = told.get("error")
    return said is None or any(reason.search(said) for reason in (_DEPENDENT, _UNSUPPORTED, _FORMAT, _ORDER))


def _is_another_operation(case: Any) -> bool:
    """`PUT /runners/all` is undescribed, but by `PUT /runners/{id}`."""
    path = urlsplit(case.formatted_path).path
    for template, item in case.operation.schema.raw_schema["paths"].items():
        fitting = re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path)
        if fitting and template != case.operation.path and case.method.lower() in item:
            return True
    return False
