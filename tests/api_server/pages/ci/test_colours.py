"""The stylesheet of logs' colours."""

import sys
from importlib import resources

from api_server.pages.ci.terminal import GROUND, PALETTE, nearest, stylesheet


def test_the_asset_is_what_the_palette_gives() -> None:
    """`python -c "from api_server.pages.ci.terminal import stylesheet as s; print(s(), end='')"` writes it."""
    assert resources.files("api_server.pages").joinpath("assets/log-colours.css").read_text() == stylesheet()


def test_logs_stand_on_the_ground_that_the_palette_was_made_for() -> None:
    text = resources.files("api_server.pages").joinpath("assets/ci.css").read_text()
    assert f"background: #{bytes(GROUND).hex()};" in text


def test_the_nearest_colour_is_the_nearest_and_is_not_searched_for() -> None:
    """A log may ask for another one at each of its characters."""
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
