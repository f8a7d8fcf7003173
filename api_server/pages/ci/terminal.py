"""What a runner's terminal would show of one line of a log: its text in pieces of one style each, and the sections that
begin and end in it.

Colours and styles are kept; a carriage return begins the line anew, as progress bars do; all other control characters
and sequences are dropped.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import attrs
from attrs import field, validators

from api_server.pages.ci import colours

_COLOUR = validators.optional(validators.and_(validators.instance_of(int), validators.in_(range(256))))


@attrs.frozen
class Style:
    """How text is shown; colours are numbers of the palette, None as the log has them."""

    text: int | None = field(default=None, validator=_COLOUR)
    ground: int | None = field(default=None, validator=_COLOUR)
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underlined: bool = False
    inverse: bool = False
    struck: bool = False

    @property
    def classes(self) -> list[str]:
        text, ground = self.text, self.ground
        if self.bold and text is not None and text < 8:  # as terminals do
            text += 8
        if self.inverse:
            text, ground = (0 if ground is None else ground), (7 if text is None else text)
        words = [word for word in ("bold", "italic", "underlined", "struck") if getattr(self, word)]
        return colours.classes(text, ground) + words + (["dim"] if self.dim and text is None else [])


PLAIN = Style()


@attrs.frozen
class Piece:
    text: str
    style: Style


Pieces = tuple[Piece, ...]


@attrs.frozen
class Begin:
    """A section begins; `at` is in seconds since 1970. What follows in the line is its title."""

    name: str
    at: int
    collapsed: bool


@attrs.frozen
class End:
    name: str
    at: int


#: In the order of a line: text, and marks of sections.
Part = Pieces | Begin | End

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
#: `38:2:<colour space>:r:g:b`, of which the space says nothing to us.
_COLOUR_SPACE = re.compile(r"\b([34]8:2):\d*:(?=\d*:\d*:\d)")
#: Characters that are split off the end of a piece that is taken back, one after the other.
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
    49: {"ground": None},
}


def read(line: str, style: Style) -> tuple[list[Part], Style]:
    """The parts of a line (without its end) that begins in `style`, and the style that the next one begins in."""
    found = _Line(style)
    position = 0
    for token in _TOKEN.finditer(line):
        found.write(line[position : token.start()])
        found.obey(token)
        position = token.end()
    found.write(line[position:])
    found.end_text()
    return found.parts, found.style


def restyled(style: Style, parameters: str) -> Style:
    """After the sequence that selects styles by these `parameters` (SGR, ECMA-48 8.3.117)."""
    codes = (int(code[:4] or 0) for code in re.split("[;:]", _COLOUR_SPACE.sub(r"\1:", parameters)))
    for code in codes:
        if code == 0:
            style = PLAIN
        elif code in _SWITCHES:
            style = attrs.evolve(style, **_SWITCHES[code])
        elif code in (38, 48):
            which = "text" if code == 38 else "ground"
            style = _coloured(style, which, _chosen(codes, getattr(style, which)))
        elif (number := _named(code)) is not None:
            style = _coloured(style, "text" if code // 10 in (3, 9) else "ground", number)
    return style


def _coloured(style: Style, which: str, number: int | None) -> Style:
    changed: dict[str, Any] = {which: number}
    return attrs.evolve(style, **changed)


def _named(code: int) -> int | None:
    """The number of a colour that has a code of its own."""
    if code in range(30, 38) or code in range(40, 48):
        return code % 10
    return code % 10 + 8 if code in range(90, 98) or code in range(100, 108) else None


def _chosen(codes: Iterator[int], present: int | None) -> int | None:
    """The colour that the codes after 38 or 48 choose; the present one where they choose none."""
    kind = next(codes, None)
    if kind == 5:
        number = next(codes, 256)
        return number if number < 256 else present
    if kind == 2:
        red, green, blue = (next(codes, 0) for _ in range(3))
        return colours.nearest(red, green, blue)
    return present


@attrs.define
class _Line:
    style: Style
    parts: list[Part] = attrs.field(factory=list)
    _pieces: list[Piece] = attrs.field(factory=list)
    #: A carriage return: what comes next takes the place of what is there.
    _returned: bool = False

    def write(self, text: str) -> None:
        if text:
            self._start_anew()
            self._pieces.append(Piece(text, self.style))

    def obey(self, token: re.Match[str]) -> None:
        if token["edge"] is not None:
            self._mark(token)
        elif token["command"] == "m" and not token["parameters"].strip("0123456789;:"):
            self.style = restyled(self.style, token["parameters"])
        elif token["command"] == "K":
            self._start_anew()
        elif token["control"] == "\r":
            self._returned = True
        elif token["control"] == "\b" and self._pieces:
            self._step_back()

    def end_text(self) -> None:
        if self._pieces:
            alike = itertools.groupby(self._pieces, key=lambda piece: piece.style)
            self.parts.append(
                tuple(Piece("".join(one.text for one in group), style) for style, group in alike)
            )
        self._pieces, self._returned = [], False

    def _step_back(self) -> None:
        """Takes one character away; of a long piece the end is split off first, for the next ones."""
        last = self._pieces.pop()
        cut = max(0, len(last.text) - _SPLIT)
        for text in (last.text[:cut], last.text[cut:-1]):
            if text:
                self._pieces.append(Piece(text, last.style))

    def _mark(self, token: re.Match[str]) -> None:
        self.end_text()
        if token["edge"] == "end":
            self.parts.append(End(token["name"], int(token["at"])))
            return
        options = (token["options"] or "").replace(" ", "").split(",")
        self.parts.append(Begin(token["name"], int(token["at"]), "collapsed=true" in options))

    def _start_anew(self) -> None:
        if self._returned:
            self._pieces, self._returned = [], False
