"""Parsers of texts that users choose take time in proportion to the text's length."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from api_server.ci.config import checks, patterns, predefined, rules, variables
from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.yaml_text import load
from api_server.ci.jobs import report_handlers
from api_server.ci.jobs.logs import mask
from api_server.ci.runners import uploads
from api_server.git.remote import access
from api_server.outbound import mail
from api_server.pages import namespaces
from api_server.pages.ci import logs as log_pages
from api_server.web import request_data
from api_server.web.errors import ApiError
from common import http_fields, logs, static_paths
from common.client_address import hops_of, networks
from storage_edge.rules import fields, selection


def _parts(text: str) -> object:
    """Return a form of several parts."""
    return request_data._form_of_parts(text.encode(), "multipart/form-data; boundary=x")


def _rendered(text: str) -> object:
    """Return the HTML of a log's line."""
    return log_pages.render(text.encode() + b"\n", log_pages.State())


#: A parser, and a text with about this many characters that is hard to read.
PARSERS: list[tuple[str, Callable[[str], Any], Callable[[int], str]]] = [
    ("a logged path of many names", logs.redact, lambda n: "?token" * (n // 6) + " "),
    ("a logged path of one long name", logs.redact, lambda n: "?" + "token" * (n // 5) + " "),
    ("a logged path without names", logs.redact, lambda n: "?" * n + " "),
    ("a logged path of values", logs.redact, lambda n: "?value[" * (n // 7) + " "),
    ("a logged URL", logs.redact, lambda n: "://" + "a:" * (n // 2)),
    ("credentials in URLs", access.sanitize, lambda n: "https://a" * (n // 9)),
    ("Cache-Control of commas", lambda text: fields.directives([text]), lambda n: "," * n),
    ("Cache-Control of spaces", lambda text: fields.directives([text]), lambda n: " " * n),
    ("Cache-Control of quotes", lambda text: fields.directives([text]), lambda n: 'a="' * (n // 3)),
    ("CDN-Cache-Control", lambda text: fields.cdn_directives([text]), lambda n: "a;" * (n // 2)),
    (
        "Accept-Encoding",
        lambda text: selection.normalised("accept-encoding", text),
        lambda n: " \t" * (n // 2) + "x",
    ),
    ("entity tags", lambda text: http_fields.has_tag([text], '"x"'), lambda n: '"a' * (n // 2)),
    ("Range", lambda text: http_fields.requested_ranges(text, 100), lambda n: "bytes=" + "1" * n),
    ("dates", lambda text: http_fields.parse_date(text, 0.0), lambda n: "Sun," + " " * n),
    ("logs of colours", _rendered, lambda n: "a\x1b[31m" * (n // 6)),
    ("logs of half sequences", _rendered, lambda n: "\x1b[;" * (n // 3)),
    ("logs of half titles", _rendered, lambda n: "\x1b]" * (n // 2)),
    ("logs of steps back", _rendered, lambda n: "a" * (n // 2) + "\b\x1b[H" * (n // 8)),
    ("logs of half sections", _rendered, lambda n: "section_start:1:" * (n // 16)),
    ("logs of sections", _rendered, lambda n: "section_start:1:a\r\x1b[0K" * (n // 22)),
    ("logs of ends of sections", _rendered, lambda n: "section_end:1:a\r\x1b[0K" * (n // 20)),
    ("static paths", static_paths.parse, lambda n: "/a/-/raw/" + "-/raw/" * (n // 6)),
    ("addresses", mail.is_address, lambda n: "a." * (n // 2) + "@"),
    ("forms", request_data.fields_of, lambda n: "a=" + "%41" * (n // 3)),
    ("forms that are no text", request_data.fields_of, lambda n: "a=" + "%ff" * (n // 3)),
    ("names of fields", request_data.fields_of, lambda n: "a" + "[b]" * (n // 3) + "=1"),
    ("hashes in forms", request_data.fields_of, lambda n: "&".join(["a[b][c][d][]=1"] * (n // 15))),
    ("elements of JSON", lambda text: request_data._elements(text.encode()), lambda n: "\\" * n + '"' * n),
    ("parts", _parts, lambda n: '--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (n // 60)),
    ("parts of quotes", _parts, lambda n: "--x\r\nContent-Disposition: form-data" + ';name="' * (n // 7)),
    ("parts of blanks", _parts, lambda n: "--x\r\nContent-Disposition: form-data; name=" + " ;" * (n // 2)),
    ("parts of boundaries", _parts, lambda n: "\r\n--" * (n // 4)),
    ("full paths", namespaces._leads_somewhere, lambda n: "a/" * (n // 2) + "a"),
    ("full paths of one name", namespaces._leads_somewhere, lambda n: "a." * (n // 2) + "/"),
    (
        "proxies",
        lambda text: hops_of(networks(["127.0.0.1"]), "127.0.0.1", [text]),
        lambda n: "127.0.0.1," * (n // 10),
    ),
    (
        "dotenv reports",
        lambda text: uploads.parse_dotenv(text.encode()),
        lambda n: "a=x" + " " * (n // 4) + "y",
    ),
    (
        "a log full of secrets",
        lambda text: mask(text.encode(), [b"s3cret12", b"k" * 2000]),
        lambda n: "s3cret12 " * n,
    ),
    ("numbers in YAML", lambda text: load(text, Budget()), lambda n: "a: 1" + ":1" * (4 * n)),
    (
        "merge keys in YAML",
        lambda text: load(text, Budget()),
        lambda n: "a: &a {k: 1}\nb: [" + "*a," * (n // 3) + "]",
    ),
    (
        "YAML of directives",
        lambda text: load(text, Budget()),
        lambda n: "".join(f"%TAG !{number}! x\r" for number in range(n // 2)) + "---\ra: 1",
    ),
    ("nested YAML", lambda text: load(text, Budget()), lambda n: "a: " + "[" * n),
    ("durations", checks.parse_duration, lambda n: "1d" + "," * n + "!"),
    ("conditions of rules", rules.parse_condition, lambda n: "$a =~ /" + "a" * (n // 2)),
    ("regular expressions", patterns.parse_delimited, lambda n: "/" + r"\pL" * (n // 3) + "/"),
    ("path patterns", patterns.compile_glob, lambda n: "**/" * (n // 3)),
    ("path patterns of braces", patterns.compile_glob, lambda n: "{a}" * (n // 3)),
    ("path patterns of sets", patterns.compile_glob, lambda n: "[a-b]" * (n // 5)),
    ("refs of `only`", patterns.check_ref, lambda n: "/" + "/@" * (n // 2)),
    ("numbers of jobs", report_handlers.suite_name, lambda n: " 1 1" * (n // 4) + "x"),
    ("lists of jobs", report_handlers.suite_name, lambda n: ": [" * (n // 3)),
    ("environment names", predefined.environment_slug, lambda n: "-" * n + "a"),
    ("variables", lambda text: variables.expand(text, {}), lambda n: "${" * (n // 2)),
]


@pytest.mark.parametrize(("read", "text"), [row[1:] for row in PARSERS], ids=[row[0] for row in PARSERS])
def test_time_grows_as_the_text_does(read: Callable[[str], Any], text: Callable[[int], str]) -> None:
    """In processor time; if the longer text takes no measurable time, it cannot grow much."""
    short, long = _seconds(read, text(4_000)), _seconds(read, text(16_000))
    assert long < max(0.01, 8 * short), (short, long)


def _seconds(read: Callable[[str], Any], text: str) -> float:
    """Return the shortest time of three."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        with contextlib.suppress(ValueError, CiConfigError, uploads.InvalidDotenv, ApiError):
            read(text)
        taken.append(time.thread_time() - began)
    return min(taken)
