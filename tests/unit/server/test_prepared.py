"""What the launcher reads of a model, before it prepares it."""

from pathlib import Path

import pytest

from server.launcher.options import ServeOptions
from server.launcher.prepared import read_model
from workers.shared.errors import ConfigError


def test_only_models_on_the_hub_have_revisions(tmp_path: Path) -> None:
    for model in ("tiny", str(tmp_path)):
        with pytest.raises(ConfigError, match="--revision v9: only models on the hub"):
            read_model(ServeOptions(model=model, revision="v9"))
