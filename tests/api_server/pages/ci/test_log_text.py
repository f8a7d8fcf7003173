"""The HTML of logs: everything that a job writes is shown as text, in colours, sections and lines, as a whole or piece
by piece."""

import sys
from html.parser import HTMLParser
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.pages.ci import terminal
from api_server.pages.ci.logs import LONGEST_LINE, State, render, state_of
from api_server.pages.ci.terminal import BACKGROUND, PALETTE, nearest, stylesheet

#: Parts of logs, so that those with a meaning occur often.
_WORDS = st.sampled_from([
    b"\n", b"\r\n", b"\r", b"\b", b"\x1b[0m", b"\x1b[31;1m", b"\x1b[38;5;200;48;2;1;2;3m", b"\x1b[7m", b"\x1b[2K",
    b"\x1b[10;4H", b"\x1b]0;title\x07", b"\x1b", b"\x1b[", b"<script>", b"<!--", b"&lt;", b"\"'", b"\0", b"\xff\xc3",
    "é€".encode(), b"section_start:1:a\r\x1b[0K", b"section_end:5:a\r\x1b[0K",
    b"section_start:2:b[collapsed=true]\r\x1b[0K",
    b"section_end:9:b\r\x1b[0K", b"section_start:1:a<b>\r\x1b[0K", b"text",
])  # fmt: skip
_LOGS = st.lists(_WORDS | st.binary(max_size=4), max_size=40).map(b"".join)
#: Every allowed element, with its attributes.
_KNOWN = {
    "div": {"class", "id", "data-unfinished", "data-continues", "data-took"},
    "details": {"open"},
    "summary": set(),
    "a": {"href"},
    "span": {"class"},
    "b": {"class"},
}


class _Tree(HTMLParser):
    """A parser that checks that only known elements occur, closed in order; it collects the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= _KNOWN[tag], (tag, attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = unknown_decl = handle_pi = handle_comment


def _rows(log: bytes) -> list[str]:
    """Return the text of each row, without its number."""
    html = render(log, State()).html
    return ["".join(_Tree(row).texts) for row in _inner(html)]


def _inner(html: str) -> list[str]:
    """Return the content of the spans of rows and titles."""
    return [part.split("</span>")[0] for part in html.split("<span>")[1:]]


@given(_LOGS)
def test_nothing_but_text_and_known_elements_comes_out(log: bytes) -> None:
    _Tree(render(log, State()).html)


@given(_LOGS, st.integers(0, 40))
def test_pieces_are_together_what_the_whole_is(log: bytes, lines: int) -> None:
    """The cut is at the beginning of a line; the page stores the state after the first piece."""
    whole = render(log, State())
    cut = len(b"\n".join(log.split(b"\n")[:lines])) + 1 if log.count(b"\n") >= lines > 0 else 0
    first = render(log[:cut], State())
    rest = render(log[first.read :], state_of(first.state.text))
    assert (first.read, first.read + rest.read, rest.state) == (cut, whole.read, whole.state)
    _Tree(rest.html)
    texts = [[text for text in _Tree(html).texts if ":" not in text] for html in (first.html, rest.html)]
    assert texts[0] + texts[1] == [text for text in _Tree(whole.html).texts if ":" not in text]


@given(st.text(max_size=60))
def test_a_state_that_nobody_gave_is_refused_or_is_one(text: str) -> None:
    try:
        state = state_of(text)
    except ValueError:
        return
    _Tree(render(b"text\nsection_end:1:a\r\x1b[0K\n", state).html)


@pytest.mark.parametrize(
    ("log", "rows"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"10%\r20%\r30%\n", ["30%"]),
        (b"kept\r\n", ["kept"]),
        (b"kept\r", ["kept"]),
        (b"gone\r\x1b[K\n", [""]),
        (b"ab\b\bx\n", ["x"]),
        (b"\x1b[2Jclean\x1b[3;4H \x1b]0;a title\x07sheet\x1b(B\n", ["clean sheet"]),
        (b"a\tb\x00\x07c\n", ["a\tbc"]),
        ("é".encode() + b"\xff\n", ["é\ufffd"]),
        (b"unfinished", ["unfinished"]),
    ],
)
def test_a_line_is_shown_as_a_terminal_leaves_it(log: bytes, rows: list[str]) -> None:
    assert _rows(log) == rows


@pytest.mark.parametrize(
    ("sequence", "classes"),
    [
        (b"\x1b[31m", "f1"),
        (b"\x1b[1;31m", "f9 bold"),
        (b"\x1b[97m", "f15"),
        (b"\x1b[38;5;208m", "f208"),
        (b"\x1b[38;2;255;0;0m", "f196"),
        (b"\x1b[38:2::255:0:0m", "f196"),
        (b"\x1b[41m", "b1"),
        (b"\x1b[107;30m", "b15"),  # the log's readable black is not readable on white
        (b"\x1b[3;4;9m", "italic underlined struck"),
        (b"\x1b[2m", "dim"),
        (b"\x1b[7m", "b7"),
        (b"\x1b[31m\x1b[4m\x1b[39m", "underlined"),
    ],
)
def test_styles_become_classes(sequence: bytes, classes: str) -> None:
    assert f'<b class="{classes}">x</b>' in render(sequence + b"x\x1b[0;m plain\n", State()).html


def test_a_style_lasts_until_it_ends_also_over_lines() -> None:
    html = render(b"\x1b[32mone\ntwo\x1b[0m\nthree\n", State()).html
    assert html.count('<b class="f2">') == 2
    assert "<span>three</span>" in html


def test_sections_are_folded_with_their_titles_and_how_long_they_took() -> None:
    log = (
        b"section_start:100:outer\r\x1b[0KOuter\n"
        b"section_start:101:inner[hide_duration=true,collapsed=true]\r\x1b[0KInner\n"
        b"deep\n"
        b"section_end:102:inner\r\x1b[0K\n"
        b"section_end:3765:outer\r\x1b[0Kafter\n"
    )
    html = render(log, State()).html
    assert html == (
        '<div class="section" id="L1"><a href="#L1">1</a><details open><summary><span>Outer</span>'
        '<span class="took">1:01:05</span></summary>'
        '<div class="section" id="L2"><a href="#L2">2</a><details><summary><span>Inner</span>'
        '<span class="took">00:01</span></summary>'
        '<div class="row" id="L3"><a href="#L3">3</a><span>deep</span></div>'
        "</details></div></details></div>"
        '<div class="row" id="L5"><a href="#L5">5</a><span>after</span></div>'
    )


def test_a_section_that_ends_later_is_told_where_it_goes_on() -> None:
    first = render(b"section_start:100:a\r\x1b[0KA\nin\nhalf", State())
    rest = render(b"half a line\nsection_end:107:a\r\x1b[0K\nout\n", first.state)
    assert first.html.endswith("<span>half</span></div></details></div>")
    assert rest.html.startswith('<div data-continues data-took="00:07"><div class="row" id="L3">')
    assert rest.html.endswith('</div><div class="row" id="L5"><a href="#L5">5</a><span>out</span></div>')


def test_a_line_without_end_is_cut_and_does_not_stop_the_rest() -> None:
    rendered = render("é".encode() * LONGEST_LINE + b"\nnext\n", State())
    assert "\ufffd" not in rendered.html
    assert rendered.state.number == 3
    assert rendered.html.count('id="L1"') == 1
    assert 'id="L2"><a href="#L2">2</a><span>next' in rendered.html


def test_sections_are_not_nested_without_end() -> None:
    log = b"".join(b"section_start:1:s%d\r\x1b[0K\n" % number for number in range(1000))
    assert render(log, State()).html.count("<details") == 10


def test_every_colour_can_be_read() -> None:
    assert all(terminal.contrast(text, terminal.BACKGROUND) >= 4.5 for text in terminal.TEXT)
    for ground in range(256):
        assert terminal.contrast(terminal.ON[ground], terminal.PALETTE[ground]) >= 4.5


def test_the_asset_is_what_the_palette_gives() -> None:
    """`python -c "from api_server.pages.ci.terminal import stylesheet as s; print(s(), end='')"` writes it."""
    assert resources.files("api_server.pages").joinpath("assets/log-colours.css").read_text() == stylesheet()


def test_logs_stand_on_the_ground_that_the_palette_was_made_for() -> None:
    text = resources.files("api_server.pages").joinpath("assets/ci.css").read_text()
    assert f"background: #{bytes(BACKGROUND).hex()};" in text


def test_the_nearest_colour_is_the_nearest_and_is_not_searched_for() -> None:
    """A log may use another colour for each of its characters."""
    some = [
        (red, green, blue) for red in (0, 47, 95, 200) for green in (3, 135, 255) for blue in (8, 118, 300)
    ]
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        found = [nearest(*colour) for colour in some]
    finally:
        sys.setprofile(None)
    for colour, number in zip(some, found, strict=True):
        distances = [
            sum((min(part, 255) - other) ** 2 for part, other in zip(colour, each, strict=True))
            for each in PALETTE[16:]
        ]
        assert distances[number - 16] == min(distances), colour
    assert calls < 30 * len(some)
