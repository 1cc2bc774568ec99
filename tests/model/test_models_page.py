"""The page of models says what the tables say."""

from pathlib import Path

from tests.models_page import page


def test_the_page_is_up_to_date() -> None:
    assert (Path(__file__).parents[2] / "docs" / "models.md").read_text() == page(), "run `make models`"
