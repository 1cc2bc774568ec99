"""In which order rank 0 starts."""

import json
from pathlib import Path
from typing import Any

import pytest

import speculation.__main__
from workers.shared.config import Endpoints, EngineConfig
from workers.shared.errors import ConfigError


def test_rank_0_listens_before_it_loads_and_no_longer_than_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Listening:
        def __init__(self, *_: Any) -> None:
            happened.append("listens")

        def close(self) -> None:
            happened.append("closed")

    def load(*_: Any) -> None:
        happened.append("loads")
        raise ConfigError("no such module")

    monkeypatch.setattr(speculation.__main__, "Channels", Listening)
    monkeypatch.setattr(speculation.__main__, "build_drafters", load)
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path))
    config = {"model_type": "llama", "vocab_size": 400, "max_position_embeddings": 64, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    endpoints = Endpoints("inproc://bus", "inproc://results", ("inproc://0", "inproc://1"), ())
    with pytest.raises(ConfigError, match="no such module"):
        speculation.__main__.serve(EngineConfig(str(tmp_path), (1, 1), endpoints, 64))
    assert happened == ["listens", "loads", "closed"]
