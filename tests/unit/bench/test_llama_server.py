"""llama.cpp's server as a baseline: what it is asked for, and what becomes of its stream."""

import json
from pathlib import Path

import pytest

from speculation.bench.configuration import BenchSettings
from speculation.bench.contenders.llama_server import LlamaServer, StreamedTokens
from workers.shared.errors import ConfigError


def line(tokens: list[int], predicted: int, **more: object) -> bytes:
    return b"data: " + json.dumps({"tokens": tokens, "tokens_predicted": predicted, **more}).encode() + b"\n"


def test_a_stream_becomes_tokens_with_a_time_each_and_those_held_back_count() -> None:
    found = StreamedTokens()
    found.line(line([5], 1), 100)
    found.line(b"\n", 150)
    found.line(line([7], 3), 300)  # the one before was half a character
    found.line(line([], 3, stop=True), 310)
    assert (found.tokens, found.times_us) == ([5, -1, 7], [100, 300, 300])


def test_an_error_in_the_stream_is_told() -> None:
    with pytest.raises(ConfigError, match="no slot"):
        StreamedTokens().line(b'data: {"error": {"message": "no slot"}}\n', 1)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="llama-server is not on the PATH"):
        LlamaServer(BenchSettings("model.gguf", 8), tmp_path / "log")
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for model in ("default", str(tmp_path / "missing.gguf")):
        with pytest.raises(ConfigError, match=r"MODEL has to be a \.gguf file"):
            LlamaServer(BenchSettings(model, 8), tmp_path / "log")
