"""Every address that either process answers is mentioned in the documents. (docs/compatibility.md covers the API,
generated pages cover settings and commands, and the tests beside this one cover metrics and messages.)"""

import re

from aiohttp import web

from api_server.pages.routes import PREFIX
from api_server.pages.site import PAGES
from storage_edge.app import create_app as edge_app
from storage_edge.settings import Settings as EdgeSettings
from tests.support.checkout import CHECKOUT
from tests.support.forge import Forge

from .printed_commands import documents

_PARAMETER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{[^{}]*\})*))?\}")


def pattern_of(path: str) -> re.Pattern[str]:
    """Return a pattern for a path as routes declare it."""
    parts = _PARAMETER.split(path)
    text = "".join(
        re.escape(parts[at]) + (f"({parts[at + 2] or '[^/]+'})" if at + 2 < len(parts) else "")
        for at in range(0, len(parts), 3)
    )
    return re.compile(text, re.DOTALL)


def said(text: str) -> set[str]:
    """Return the addresses in a document, with 1 for each of their parameters."""
    found = re.findall(r"`(?:(?:GET|POST) )?(/[^`\s?]*)[^`]*`", text)
    return {re.sub(r":\w+", "1", path.replace(":oid", "1" * 64)) for path in found}


def answered(*apps: web.Application) -> dict[str, re.Pattern[str]]:
    """Return readable addresses with their patterns; forms are described by their buttons."""
    patterns = {
        route.path: pattern_of(route.path)
        for pages in PAGES
        for route in pages.routes
        if route.method == "GET" and route.path.startswith(PREFIX)
    }
    for app in apps:
        for resource in app.router.resources():
            info = resource.get_info()
            if {route.method for route in resource} <= {"POST"} or "{below}" in info.get("formatter", ""):
                continue
            if "path" in info:
                patterns[info["path"]] = pattern_of(info["path"])
            elif "pattern" in info:
                patterns[info["formatter"]] = info["pattern"]
    return patterns


async def test_every_address_is_mentioned_and_those_of_pages_are_there(forge: Forge) -> None:
    patterns = answered(forge.server.app, edge_app(EdgeSettings()))
    assert len(patterns) > 60
    told = {path for document in documents() for path in said(document.read_text())}
    assert sorted(path for path, pattern in patterns.items() if not any(map(pattern.fullmatch, told))) == []
    of_pages = said((CHECKOUT / "docs/pages.md").read_text()) - {"/api/v4"}
    known = [pattern for path, pattern in answered(forge.server.app).items() if path != "/{full_path}"]
    assert sorted(path for path in of_pages if not any(one.fullmatch(path) for one in known)) == ["/1"]
