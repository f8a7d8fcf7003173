"""Where in a difference a note stands: checked against git, stored as GitLab shows it."""

from typing import Annotated, Literal

import attrs
import orjson
from aiohttp import web

from api_server.code.reading import reading
from api_server.git.diffs import Line, has_line
from api_server.git.repositories import repositories
from api_server.merge_requests.notes.rules import not_saved
from api_server.web import context
from api_server.web.errors import bad_parameters
from api_server.web.params import AtMost, Name

FilePath = Annotated[str, AtMost(4096)]


@attrs.frozen(kw_only=True)
class EndOfRange:
    line_code: Name | None = None
    type: Literal["new", "old", "expanded"] | None = None
    old_line: int | None = None
    new_line: int | None = None


@attrs.frozen(kw_only=True)
class LineRange:
    start: EndOfRange | None = None
    end: EndOfRange | None = None


@attrs.frozen(kw_only=True)
class Position:
    """The `position` of a note: a line (its number before, after, or both) of a file, between the commits `base_sha`
    and `head_sha`, as the merge request's versions and `diff_refs` name them."""

    base_sha: Name
    start_sha: Name
    head_sha: Name
    position_type: Literal["text", "image", "file"]
    old_path: FilePath | None = None
    new_path: FilePath | None = None
    old_line: int | None = None
    new_line: int | None = None
    line_range: LineRange | None = None


async def checked(request: web.Request, project_id: int, position: Position) -> str:
    """The position's JSON. Raises 400, as GitLab words it, where the difference has no such line."""
    if position.position_type != "text":
        raise bad_parameters(
            f"position[position_type] {position.position_type} is not supported by this service"
        )
    line = Line(
        old_path=position.old_path,
        new_path=position.new_path,
        old_line=position.old_line,
        new_line=position.new_line,
    )
    largest = context.settings(request).diff_max_patch_bytes
    async with reading(request):
        repository = repositories(request).open(project_id)
        there = await has_line(repository, position.base_sha, position.head_sha, line, largest=largest)
    if not there:
        raise _refused(position)
    return _shown(position)


def _refused(position: Position) -> Exception:
    problems = {"line_code": ["can't be blank", "must be a valid line code"]}
    if position.old_line is None and position.new_line is None:
        problems["position"] = ["is incomplete"]
    return not_saved(problems)


def _shown(position: Position) -> str:
    names = ("base_sha", "start_sha", "head_sha", "old_path", "new_path", "position_type")
    shown = {name: getattr(position, name) for name in (*names, "old_line", "new_line")}
    spanned = position.line_range
    return orjson.dumps(shown | {"line_range": attrs.asdict(spanned) if spanned else None}).decode()
