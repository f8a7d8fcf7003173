"""The stylesheet of logs' colours."""

from importlib import resources

from api_server.pages.ci.colours import GROUND, stylesheet


def test_the_asset_is_what_the_palette_gives() -> None:
    """`python -c "from api_server.pages.ci.colours import stylesheet as s; print(s(), end='')"` writes it."""
    assert resources.files("api_server.pages").joinpath("assets/log-colours.css").read_text() == stylesheet()


def test_logs_stand_on_the_ground_that_the_palette_was_made_for() -> None:
    text = resources.files("api_server.pages").joinpath("assets/ci.css").read_text()
    assert f"background: #{bytes(GROUND).hex()};" in text
