"""docs/settings.md says what the code says."""

from scripts.settings_reference import reference
from tests.support.checkout import CHECKOUT


def test_the_document_is_what_the_code_says() -> None:
    written = (CHECKOUT / "docs/settings.md").read_text(encoding="utf-8")
    assert written == reference(), "python -m scripts.settings_reference >docs/settings.md"
