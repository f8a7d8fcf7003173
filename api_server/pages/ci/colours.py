"""The 256 colours of terminals as classes of a stylesheet, every one of them readable where it stands.

Programs choose colours for terminals of all kinds; here they stand on a dark ground. So a colour of text is made
lighter until it has the contrast that people need, and a ground that a program chose gets black or white text where the
one that it chose cannot be read. The policy of our pages allows no styles within the page: hence classes, and hence the
nearest of the 256 where a program asks for one of 16 million.
"""

from collections.abc import Iterable

RGB = tuple[int, int, int]

#: What all logs stand on, in light and in dark windows, as pages.css has it.
GROUND: RGB = (0x1B, 0x1F, 0x24)
#: The contrast of text that WCAG 2.2 asks for (1.4.3).
READABLE = 4.5

_BASE = (
    "000000 cd3131 0dbc79 e5e510 2472c8 bc3fbc 11a8cd e5e5e5",
    "666666 f14c4c 23d18b f5f543 3b8eea d670d6 29b8db ffffff",
)
_STEPS = (0, 95, 135, 175, 215, 255)
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


def _palette() -> tuple[RGB, ...]:
    """The 16 that have names, a cube of 6 x 6 x 6, and 24 greys, as xterm numbers them."""
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


def contrast(one: RGB, other: RGB) -> float:
    """From 1 (the same) to 21 (black and white), as WCAG computes it."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _lightened(colour: RGB) -> RGB:
    """The colour, with as much white as it takes to be read on `GROUND`."""
    found = colour
    for tenth in range(11):
        red, green, blue = (part + (255 - part) * tenth // 10 for part in colour)
        found = (red, green, blue)
        if contrast(found, GROUND) >= READABLE:
            break
    return found


PALETTE = _palette()
#: By the value of a part of a colour: which step of the cube is nearest, the darker of two.
_NEAREST_STEP = [min(range(6), key=lambda step: abs(_STEPS[step] - value)) for value in range(256)]
#: Of text on `GROUND`.
TEXT = tuple(_lightened(colour) for colour in PALETTE)
#: Of text on each of the palette's colours.
ON = tuple(max((_BLACK, _WHITE), key=lambda text: contrast(text, ground)) for ground in PALETTE)


def nearest(red: int, green: int, blue: int) -> int:
    """The number of the colour of the cube or of the greys that is like this one; parts beyond 255 count as that.

    Computed and not searched for: a log may choose another colour for each of its characters.
    """
    wanted = [min(part, 255) for part in (red, green, blue)]
    steps = [_NEAREST_STEP[part] for part in wanted]
    in_cube = 16 + 36 * steps[0] + 6 * steps[1] + steps[2]
    grey = 232 + min(max(round((sum(wanted) / 3 - 8) / 10), 0), 23)
    return min(in_cube, grey, key=lambda number: _distance(wanted, PALETTE[number]))


def _distance(one: Iterable[int], other: RGB) -> int:
    return sum((part - its) ** 2 for part, its in zip(one, other, strict=True))


def classes(text: int | None, ground: int | None) -> list[str]:
    """Classes of text in these colours of the palette (None: as the log has it)."""
    if ground is None:
        return [] if text is None else [f"f{text}"]
    keeps = text is not None and contrast(TEXT[text], PALETTE[ground]) >= READABLE
    return [f"b{ground}", *([f"f{text}"] if keeps else [])]


def stylesheet() -> str:
    """The rules of all these classes; those of text come last, so that they win."""
    grounds = [
        f".log .b{number}{{background:{_hex(colour)};color:{_hex(ON[number])}}}"
        for number, colour in enumerate(PALETTE)
    ]
    texts = [f".log .f{number}{{color:{_hex(colour)}}}" for number, colour in enumerate(TEXT)]
    made_by = "/* Made by api_server/pages/ci/colours.py. */"
    return "\n".join((made_by, *grounds, *texts, ""))


def _hex(colour: RGB) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)
