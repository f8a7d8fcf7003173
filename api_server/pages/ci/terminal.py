"""A line of a job's log as a terminal shows it: spans of text, each with one style and readable, and marks of sections.

Colours and styles are kept. A carriage return starts the line anew, which progress bars need. All other control
characters and sequences are dropped. Programs choose colours for terminals of all kinds, but here the background is
dark. So a colour of text is made lighter until its contrast suffices, and on a background that a program chose, text
becomes black or white if its own colour cannot be read there. The content security policy of our pages forbids styles
within the page: hence classes, and hence the nearest of 256 colours if a program chooses one of 16 million.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from attrs import field, validators

RGB = tuple[int, int, int]

#: The background of all logs in both colour schemes, as in ci.css.
BACKGROUND: RGB = (0x1B, 0x1F, 0x24)
#: The minimum contrast of text by WCAG 2.2 (1.4.3).
READABLE = 4.5

_BASE = (
    "000000 cd3131 0dbc79 e5e510 2472c8 bc3fbc 11a8cd e5e5e5",
    "666666 f14c4c 23d18b f5f543 3b8eea d670d6 29b8db ffffff",
)
_STEPS = (0, 95, 135, 175, 215, 255)
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


def _palette() -> tuple[RGB, ...]:
    """Return the 16 colours that have names, a cube of 6 x 6 x 6 colours, and 24 greys, numbered as in xterm."""
    base = [_rgb(text) for row in _BASE for text in row.split()]
    cube = [(red, green, blue) for red in _STEPS for green in _STEPS for blue in _STEPS]
    greys = [(grey, grey, grey) for grey in range(8, 248, 10)]
    return (*base, *cube, *greys)


def _rgb(text: str) -> RGB:
    return int(text[:2], 16), int(text[2:4], 16), int(text[4:], 16)


def _luminance(colour: RGB) -> float:
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(first: RGB, second: RGB) -> float:
    """Return the contrast from 1 (the same colour) to 21 (black and white), as WCAG defines it."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _lightened(colour: RGB) -> RGB:
    """Return the colour with as much white added as it needs to be readable on `BACKGROUND`."""
    lightened = colour
    for tenth in range(11):
        red, green, blue = (part + (255 - part) * tenth // 10 for part in colour)
        lightened = (red, green, blue)
        if contrast(lightened, BACKGROUND) >= READABLE:
            break
    return lightened


PALETTE = _palette()
#: The nearest step of the cube (the darker one of two), by the value of red, green or blue.
_NEAREST_STEP = [min(range(6), key=lambda step: abs(_STEPS[step] - value)) for value in range(256)]
#: The colours of text on `BACKGROUND`, by their numbers in the palette.
TEXT = tuple(_lightened(colour) for colour in PALETTE)
#: The colour of text on each colour of the palette: black or white, whichever has more contrast.
ON = tuple(max((_BLACK, _WHITE), key=lambda text: contrast(text, background)) for background in PALETTE)


def nearest(red: int, green: int, blue: int) -> int:
    """Return the number of the nearest colour in the cube or among the greys. Values above 255 count as 255.

    It is computed and not searched for, because a log may choose another colour for each of its characters.
    """
    colour = [min(part, 255) for part in (red, green, blue)]
    steps = [_NEAREST_STEP[part] for part in colour]
    in_cube = 16 + 36 * steps[0] + 6 * steps[1] + steps[2]
    grey = 232 + min(max(round((sum(colour) / 3 - 8) / 10), 0), 23)
    return min(in_cube, grey, key=lambda number: _distance(colour, PALETTE[number]))


def _distance(first: Iterable[int], second: RGB) -> int:
    return sum((part - its) ** 2 for part, its in zip(first, second, strict=True))


def classes(text: int | None, background: int | None) -> list[str]:
    """Return the CSS classes of text in these colours of the palette. None is the colour of the log itself."""
    if background is None:
        return [] if text is None else [f"f{text}"]
    keeps = text is not None and contrast(TEXT[text], PALETTE[background]) >= READABLE
    return [f"b{background}", *([f"f{text}"] if keeps else [])]


def stylesheet() -> str:
    """Return the CSS rules of all these classes. Those of text come last, so that they win."""
    grounds = [
        f".log .b{number}{{background:{_hex(colour)};color:{_hex(ON[number])}}}"
        for number, colour in enumerate(PALETTE)
    ]
    texts = [f".log .f{number}{{color:{_hex(colour)}}}" for number, colour in enumerate(TEXT)]
    made_by = "/* Made by api_server/pages/ci/terminal.py. */"
    return "\n".join((made_by, *grounds, *texts, ""))


def _hex(colour: RGB) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


_COLOUR = validators.optional(validators.and_(validators.instance_of(int), validators.in_(range(256))))


@attrs.frozen
class Style:
    """The style of text. Colours are numbers of the palette, or None for those of the log itself."""

    text: int | None = field(default=None, validator=_COLOUR)
    background: int | None = field(default=None, validator=_COLOUR)
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underlined: bool = False
    inverse: bool = False
    struck: bool = False

    @property
    def classes(self) -> list[str]:
        text, background = self.text, self.background
        if self.bold and text is not None and text < 8:  # terminals make bold text bright
            text += 8
        if self.inverse:
            text, background = (0 if background is None else background), (7 if text is None else text)
        words = [word for word in ("bold", "italic", "underlined", "struck") if getattr(self, word)]
        return classes(text, background) + words + (["dim"] if self.dim and text is None else [])


PLAIN = Style()


@attrs.frozen
class Span:
    text: str
    style: Style


Spans = tuple[Span, ...]


@attrs.frozen
class Begin:
    """The beginning of a section. `at` is in seconds since 1970. The text that follows in the line is its title."""

    name: str
    at: int
    collapsed: bool


@attrs.frozen
class End:
    name: str
    at: int


#: A part of a line: text, or the mark of a section.
Part = Spans | Begin | End

_SECTION = (
    r"section_(?P<edge>start|end):(?P<at>\d{1,12}):(?P<name>[\w.-]{1,100})(?:\[(?P<options>[^]\r]{0,200})\])?"
    r"\r\x1b\[0K"
)
_TOKEN = re.compile(
    rf"{_SECTION}"
    r"|\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<command>[@-~])?"
    r"|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|(?P<control>[\x00-\x08\x0a-\x1f\x7f-\x9f])",
    re.ASCII,
)
#: `38:2:<colour space>:r:g:b`. The colour space is ignored.
_COLOUR_SPACE = re.compile(r"\b([34]8:2):\d*:(?=\d*:\d*:\d)")
#: Number of characters that a backspace splits off the end of a long span, so that the next ones copy no long texts.
_SPLIT = 64
_SWITCHES: dict[int, dict[str, Any]] = {
    1: {"bold": True},
    2: {"dim": True},
    3: {"italic": True},
    4: {"underlined": True},
    7: {"inverse": True},
    9: {"struck": True},
    22: {"bold": False, "dim": False},
    23: {"italic": False},
    24: {"underlined": False},
    27: {"inverse": False},
    29: {"struck": False},
    39: {"text": None},
    49: {"background": None},
}


def read_line(line: str, style: Style) -> tuple[list[Part], Style]:
    """Return the parts of a line (without its line end) that begins in `style`, and the style after it."""
    reader = _Line(style)
    position = 0
    for token in _TOKEN.finditer(line):
        reader.write(line[position : token.start()])
        reader.obey(token)
        position = token.end()
    reader.write(line[position:])
    reader.end_text()
    return reader.parts, reader.style


def restyled(style: Style, parameters: str) -> Style:
    """Return the style after a sequence that selects styles by these `parameters` (SGR, ECMA-48 8.3.117)."""
    codes = (int(code[:4] or 0) for code in re.split("[;:]", _COLOUR_SPACE.sub(r"\1:", parameters)))
    for code in codes:
        if code == 0:
            style = PLAIN
        elif code in _SWITCHES:
            style = attrs.evolve(style, **_SWITCHES[code])
        elif code in (38, 48):
            which = "text" if code == 38 else "background"
            style = _coloured(style, which, _chosen(codes, getattr(style, which)))
        elif (number := _named(code)) is not None:
            style = _coloured(style, "text" if code // 10 in (3, 9) else "background", number)
    return style


def _coloured(style: Style, which: str, number: int | None) -> Style:
    changed: dict[str, Any] = {which: number}
    return attrs.evolve(style, **changed)


def _named(code: int) -> int | None:
    """Return the number of the colour that has this code of its own, or None."""
    if code in range(30, 38) or code in range(40, 48):
        return code % 10
    return code % 10 + 8 if code in range(90, 98) or code in range(100, 108) else None


def _chosen(codes: Iterator[int], present: int | None) -> int | None:
    """Return the colour that the codes after 38 or 48 choose, or the present one if they choose none."""
    kind = next(codes, None)
    if kind == 5:
        number = next(codes, 256)
        return number if number < 256 else present
    if kind == 2:
        red, green, blue = (next(codes, 0) for _ in range(3))
        return nearest(red, green, blue)
    return present


@attrs.define
class _Line:
    style: Style
    parts: list[Part] = attrs.field(factory=list)
    _spans: list[Span] = attrs.field(factory=list)
    #: Whether there was a carriage return, so that the next text replaces what has been written.
    _returned: bool = False

    def write(self, text: str) -> None:
        if text:
            self._start_anew()
            self._spans.append(Span(text, self.style))

    def obey(self, token: re.Match[str]) -> None:
        if token["edge"] is not None:
            self._mark(token)
        elif token["command"] == "m" and not token["parameters"].strip("0123456789;:"):
            self.style = restyled(self.style, token["parameters"])
        elif token["command"] == "K":
            self._start_anew()
        elif token["control"] == "\r":
            self._returned = True
        elif token["control"] == "\b" and self._spans:
            self._step_back()

    def end_text(self) -> None:
        if self._spans:
            alike = itertools.groupby(self._spans, key=lambda span: span.style)
            self.parts.append(
                tuple(Span("".join(span.text for span in group), style) for style, group in alike)
            )
        self._spans, self._returned = [], False

    def _step_back(self) -> None:
        """Remove the last character. The end of a long span is split off first, for further backspaces."""
        last = self._spans.pop()
        cut = max(0, len(last.text) - _SPLIT)
        for text in (last.text[:cut], last.text[cut:-1]):
            if text:
                self._spans.append(Span(text, last.style))

    def _mark(self, token: re.Match[str]) -> None:
        self.end_text()
        if token["edge"] == "end":
            self.parts.append(End(token["name"], int(token["at"])))
            return
        options = (token["options"] or "").replace(" ", "").split(",")
        self.parts.append(Begin(token["name"], int(token["at"]), "collapsed=true" in options))

    def _start_anew(self) -> None:
        if self._returned:
            self._spans, self._returned = [], False
