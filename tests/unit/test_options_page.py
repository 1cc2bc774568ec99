"""The reference page says what the declarations say."""

from pathlib import Path

from tests.options_page import page


def test_the_page_is_up_to_date() -> None:
    written = Path(__file__).parents[2] / "docs" / "options.md"
    assert written.read_text() == page(), "run `make options`"
