"""docs/commands.md says what the commands say."""

from scripts.command_reference import reference
from tests.support.checkout import CHECKOUT


def test_the_document_is_what_the_commands_say() -> None:
    written = (CHECKOUT / "docs/commands.md").read_text(encoding="utf-8")
    assert written == reference(), "python -m scripts.command_reference >docs/commands.md"
