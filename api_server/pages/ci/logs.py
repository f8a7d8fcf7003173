"""The log of a job as HTML: the end of it that a page shows first, and the parts that are added later.

Lines are numbered from 1, and sections can be folded. A growing log is rendered part by part. `State` is what a part
needs to know about the log before it, and the part before returns it. If a part continues a section that began in an
earlier one, it contains a `<div data-continues>`, whose content the script of the page moves into that section.
"""

import asyncio
import html
from collections.abc import Sequence

import attrs
import orjson
from aiohttp import web
from attrs import field, validators

from api_server.ci.jobs.handlers import watched_log
from api_server.ci.jobs.logs import Logs, logs_of
from api_server.pages.ci import terminal
from api_server.pages.ci.terminal import PLAIN, Part, SectionEnd, SectionStart, Spans, Style
from api_server.web import context

#: Maximum number of bytes of one line. The rest of a longer line is shown as a line without a number.
LONGEST_LINE = 64 * 1024
#: Maximum depth of nested sections. The marks of deeper ones are ignored.
_DEEPEST = 10


@attrs.frozen
class OpenSection:
    """A section that has not ended. `at` is when it began, in seconds since 1970."""

    name: str = field(validator=validators.instance_of(str))
    at: int = field(validator=validators.instance_of(int))


@attrs.frozen
class State:
    """The state of a log at the beginning of a part: the number of its first line (0 if lines have not been counted and
    get no numbers), the style, and the sections that are open, the outermost first."""

    number: int = field(default=1, validator=validators.instance_of(int))
    style: Style = PLAIN
    sections: tuple[OpenSection, ...] = ()

    @property
    def text(self) -> str:
        """The state as text, which the page sends with its next request."""
        sections = [[section.name, section.at] for section in self.sections]
        return orjson.dumps([self.number, attrs.astuple(self.style), sections]).decode()


def state_of(text: str) -> State:
    """Return the state with this `State.text`. Raise ValueError for any other text."""
    try:
        number, style, sections = orjson.loads(text)
        state = State(number, Style(*style), tuple(OpenSection(name, at) for name, at in sections))
    except TypeError:
        raise ValueError(text) from None
    if len(sections) > _DEEPEST:
        raise ValueError(text)
    return state


@attrs.frozen
class Rendered:
    """A part of a log as HTML. The next part begins `read` bytes further on, in `state`."""

    html: str
    read: int
    state: State


@attrs.define
class _Section:
    """A section while it is rendered: the outermost one around everything (`opened` is None), one that begins in this
    part (with a `title`), or one that began in an earlier part."""

    opened: OpenSection | None = None
    title: str | None = None
    content: list[str] = attrs.field(factory=list)
    took: str = ""


def render(log: bytes, state: State) -> Rendered:
    """Render `log`, which starts at the beginning of a line. An unfinished line at its end is shown, but the next part
    begins with it again. A line longer than `LONGEST_LINE` is cut, so that at most so many bytes are rendered twice."""
    page = _Page(state)
    position = 0
    while (end := log.find(b"\n", position)) >= 0 or len(log) - position > LONGEST_LINE:
        if end < 0 or end - position > LONGEST_LINE:
            end = _end_of_cut_line(log, position)
            page.add(log[position:end], continues=True)
            position = end
        else:
            page.add(log[position:end])
            position = end + 1
    after = page.state
    page.add_unfinished(log[position:])
    return Rendered(page.html(), position, after)


def _end_of_cut_line(log: bytes, position: int) -> int:
    """Return the position at which a line that is too long is cut: not within a character."""
    end = position + LONGEST_LINE
    while end > position + LONGEST_LINE - 4 and log[end] & 0xC0 == 0x80:
        end -= 1
    return end


class _Page:
    def __init__(self, state: State) -> None:
        self._number, self._style = state.number, state.style
        self._stack = [_Section(), *(_Section(section) for section in state.sections)]
        #: Whether the present line has its number already, and whether it is the rest of one that was too long.
        self._numbered = False
        self._cut = False

    @property
    def state(self) -> State:
        opened = tuple(section.opened for section in self._stack if section.opened is not None)
        return State(self._number, self._style, opened)

    def add(self, line: bytes, *, continues: bool = False) -> None:
        """Add a line. `continues` says that the next call adds more of the same line."""
        parts, self._style = terminal.read_line(line.decode(errors="replace"), self._style)
        self._numbered = self._cut
        if not parts and not self._cut:
            self._row(())
        while parts:
            self._add(parts.pop(0), parts)
        self._cut = continues
        if not continues and self._number:
            self._number += 1

    def add_unfinished(self, line: bytes) -> None:
        """Add only the text of an unfinished line. Marks of sections in it take effect when it is complete."""
        parts, _ = terminal.read_line(line.decode(errors="replace"), self._style)
        texts = [part for part in parts if isinstance(part, tuple)]
        if texts:
            number, link = ("", "") if self._cut else _linked(self._number)
            row = f'<div class="row"{number} data-unfinished>{link}{_text(texts[-1])}</div>'
            self._stack[-1].content.append(row)

    def html(self) -> str:
        while len(self._stack) > 1:
            self._close("")
        return "".join(self._stack[0].content)

    def _add(self, part: Part, rest: list[Part]) -> None:
        match part:
            case SectionStart() if len(self._stack) <= _DEEPEST:
                following = rest[0] if rest else None
                title = following if isinstance(following, tuple) else ()
                del rest[: 1 if title else 0]
                self._begin(part, title)
            case SectionStart():
                pass
            case SectionEnd():
                self._end(part)
            case _:
                self._row(part)

    def _row(self, spans: Spans) -> None:
        number, link = self._number_of_row()
        self._stack[-1].content.append(f'<div class="row"{number}>{link}{_text(spans)}</div>')

    def _begin(self, start: SectionStart, title: Spans) -> None:
        number, link = self._number_of_row()
        text = _text(title) if title else f"<span>{html.escape(start.name)}</span>"
        opened = OpenSection(start.name, start.at)
        fold = (
            f'<div class="section"{number}>{link}<details{"" if start.collapsed else " open"}><summary>{text}'
        )
        self._stack.append(_Section(opened, fold))

    def _end(self, ended: SectionEnd) -> None:
        """End the section and the open sections within it. Ignore the end of a section that has not begun."""
        names = [section.opened.name if section.opened else None for section in self._stack]
        while ended.name in names:
            opened = self._stack[-1].opened
            self._close(_duration(ended.at - opened.at) if opened is not None else "")
            names.pop()

    def _close(self, took: str) -> None:
        section = self._stack.pop()
        content = "".join(section.content)
        if section.title is None:
            element = f'<div data-continues data-took="{took}">{content}</div>'
        else:
            element = f'{section.title}<span class="took">{took}</span></summary>{content}</details></div>'
        self._stack[-1].content.append(element)

    def _number_of_row(self) -> tuple[str, str]:
        """Return the attribute and the link for the present line's number, or "" for both if it already has them."""
        if self._numbered:
            return "", ""
        self._numbered = True
        return _linked(self._number)


def _linked(number: int) -> tuple[str, str]:
    return (f' id="L{number}"', f'<a href="#L{number}">{number}</a>') if number else ("", "")


def _text(spans: Sequence[terminal.Span]) -> str:
    return f"<span>{''.join(_span(span) for span in spans)}</span>"


def _span(span: terminal.Span) -> str:
    text = html.escape(span.text)
    classes = span.style.classes
    return f'<b class="{" ".join(classes)}">{text}</b>' if classes else text


def _duration(seconds: int) -> str:
    """Return a duration such as `01:05` or `1:00:05`. A negative one, of a clock that was set back, counts as 0."""
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


#: Maximum number of bytes and of lines shown at once. Browsers need some hundred bytes more for each line.
WINDOW = 256 * 1024
MAX_LINES = 5_000
#: Maximum number of bytes in which lines are counted. Behind these, lines have no numbers.
COUNTED = 32 * 2**20
#: Maximum number of bytes that are rendered in the event loop. More are rendered in a thread.
_AT_ONCE = 8 * 1024


@attrs.frozen
class LogPart:
    """Bytes `start` to `end` (exclusive) of a log of `size`, as HTML. The next part begins at `next`, in `state`."""

    start: int
    next: int
    end: int
    size: int
    html: str
    state: State


async def last_part(request: web.Request, job_id: int) -> LogPart:
    """Return the end of the log, from the beginning of a line: as much as is shown at once. Without a log, its size is
    0."""
    size = await _size(request, job_id)
    logs = logs_of(context.services(request))
    start = max(0, size - WINDOW)
    text = await _read(logs, job_id, start, size)
    skipped = text.find(b"\n") + 1 if start else 0
    for _ in range(text.count(b"\n", skipped) - MAX_LINES):
        skipped = text.find(b"\n", skipped) + 1
    state = State(await _lines_before(logs, job_id, start, text[:skipped]))
    rendered = await _rendered(text[skipped:], state)
    return _part(start + skipped, start + len(text), size, rendered)


async def part_from(request: web.Request, job_id: int, start: int, state: State) -> LogPart | None:
    """Return what follows `start`, where a line begins: as much as is shown at once. Return None if the log is not (or
    no longer) that long."""
    size = await _size(request, job_id)
    if start > size:
        return None
    text = await _read(logs_of(context.services(request)), job_id, start, min(size, start + WINDOW))
    lines = text.split(b"\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        text = text[: len(text) - len(lines[-1])]
    return _part(start, start + len(text), size, await _rendered(text, state))


def _part(start: int, end: int, size: int, rendered: Rendered) -> LogPart:
    return LogPart(start, start + rendered.read, end, size, rendered.html, rendered.state)


async def _size(request: web.Request, job_id: int) -> int:
    """Return how many bytes of the log may be shown, and record that somebody is watching it."""
    log = await watched_log(context.services(request), job_id)
    return 0 if log is None else log.size - log.held_size


async def _read(logs: Logs, job_id: int, start: int, end: int) -> bytes:
    return b"".join([chunk async for chunk in logs.read(job_id, start, end)])


async def _lines_before(logs: Logs, job_id: int, start: int, skipped: bytes) -> int:
    """Return the number of the line after the first `start` bytes and the `skipped` ones, or 0 if counting would take
    long."""
    if start > COUNTED:
        return 0
    number = 1 + skipped.count(b"\n")
    async for chunk in logs.read(job_id, 0, start):
        number += chunk.count(b"\n")
    return number


async def _rendered(text: bytes, state: State) -> Rendered:
    if len(text) <= _AT_ONCE:
        return render(text, state)
    return await asyncio.to_thread(render, text, state)
