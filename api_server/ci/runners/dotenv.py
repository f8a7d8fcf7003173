"""The variables of a dotenv report: lines `KEY=value`, as `artifacts:reports:dotenv` has them. Pure."""

import re
import zlib

MAX_BYTES = 5 * 1024
MAX_VARIABLES = 150
MAX_KEY = 255
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.ASCII)


class InvalidReport(Exception):
    """A report that gives no variables; the text says why."""


def unpack(content: bytes) -> bytes:
    """The text of an upload, which is gzip or plain."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    unpacker = zlib.decompressobj(wbits=31)
    try:
        return unpacker.decompress(content, MAX_BYTES + 1)
    except zlib.error as problem:
        raise InvalidReport("Invalid Format") from problem


def parse(content: bytes) -> dict[str, str]:
    """Variables in order; a key that comes again replaces the one before. Raises `InvalidReport`."""
    text = unpack(content)
    if len(text) > MAX_BYTES:
        raise InvalidReport("Dotenv Artifact Too Big. Maximum Allowable Size: 5120")
    try:
        lines = text.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidReport("Invalid Format") from None
    variables: dict[str, str] = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            raise InvalidReport("Invalid Format")
        if len(match[1]) > MAX_KEY:
            raise InvalidReport(f"Validation failed: Key is too long (maximum is {MAX_KEY} characters)")
        variables[match[1]] = _unquoted(match[2].strip(" \t\r\f\v"))
    if len(variables) > MAX_VARIABLES:
        raise InvalidReport(f"Dotenv files cannot have more than {MAX_VARIABLES} variables")
    return variables


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
