"""Processes that do not belong together are told apart, and those that do are not."""

from pathlib import Path

import msgspec
import pytest

from workers.prepare.tiny_model import write_tiny_model
from workers.shared.config import DrafterConfig, Endpoints, EngineConfig
from workers.shared.fingerprint import disagreement, engine_fingerprint, fingerprint_key, server_fingerprint

FORCED = DrafterConfig(scripted_acceptance=0.5)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return EngineConfig(str(folder), (8, 8), Endpoints("inproc://bus", "inproc://results", (), ()), 64)


def test_what_may_differ_from_host_to_host_does_not_count(config: EngineConfig, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    write_tiny_model(copy)
    other = msgspec.structs.replace(
        config, model=str(copy), threads=4, endpoints=Endpoints("tcp://a:1", "tcp://a:2", (), ())
    )
    assert disagreement("a", engine_fingerprint(config), "b", engine_fingerprint(other)) is None
    assert fingerprint_key(engine_fingerprint(config)) == fingerprint_key(engine_fingerprint(other))
    assert disagreement("server", server_fingerprint(copy), "engine", engine_fingerprint(config)) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "bfloat16"}, 'dtype is "float32" for rank 0, "bfloat16" for stage 1'),
        ({"split": (9, 7)}, "split is [8,8] for rank 0, [9,7] for stage 1"),
        (
            {"drafter": FORCED},
            "scripted_acceptance is null for rank 0, 0.5 for stage 1",
        ),
    ],
)
def test_another_setting_is_named_with_both_values(config: EngineConfig, change: dict[str, object], said: str) -> None:
    other = msgspec.structs.replace(config, **change)
    assert disagreement("rank 0", engine_fingerprint(config), "stage 1", engine_fingerprint(other)) == said
    assert fingerprint_key(engine_fingerprint(config)) != fingerprint_key(engine_fingerprint(other))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_another_file_is_named(config: EngineConfig, tmp_path: Path, file: str) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / file).write_text((tmp_path / file).read_text() + " ")
    told = disagreement("the server", server_fingerprint(tmp_path), "the engine", engine_fingerprint(config))
    assert told is not None
    assert told.startswith(f"{file} is ")


def test_a_side_that_says_nothing_does_not_agree(config: EngineConfig) -> None:
    assert disagreement("the server", server_fingerprint(Path(config.model)), "the engine", {}) is not None
