"""`echelon serve tiny` with a draft head: the text of plain decoding, and drafts that were made."""

from pathlib import Path

import httpx
import pytest

from speculation.drafters.none import NoDrafter
from tests.e2e.serving import serving
from tests.harness import local_engine
from tests.model.heads.made import EAGLE3, random_head, write_safeailab, write_specforge
from tests.processes import wait_until
from workers.shared.messages import Sampling

pytestmark = pytest.mark.timeout(900)

PROMPT = [40, 41, 42, 40, 41, 42, 40, 41]
DRAFTED = "echelon:speculation_drafted_total"
NEW = 40


def served(folder: Path, *options: str) -> tuple[list[int], str]:
    """Token ids of a sampled answer, for which there are drafts, and what was said."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": NEW, "temperature": 0.8, "seed": 11, "ignore_eos": True}
    with serving(folder, "tiny", "--max-model-len", "512", "--always-draft", *options) as running:
        answer = httpx.post(f"{running.url}/v1/completions", json=body | {"return_token_ids": True}, timeout=300)
        answer.raise_for_status()
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        wait_until(lambda: running.metric(DRAFTED) > 0, 60)  # figures travel with the next ping
        return ids, running.log.read_text()


def test_text_is_that_of_plain_decoding_in_rounds_of_trees_and_streamed(tmp_path: Path, tiny_model: Path) -> None:
    with local_engine(tiny_model, (16,)) as engine:
        engine.drafting.use(NoDrafter())
        plain = engine.client.generate(PROMPT, NEW, Sampling(seed=11, temperature=0.8)).tokens
    head = write_safeailab(random_head(EAGLE3), tmp_path / "head")
    config = f'{{"method": "eagle3", "model": "{head}", "num_speculative_tokens": 3}}'
    rounds, said = served(tmp_path, "--stages", "2", "--tree-width", "3", "--speculative-config", config)
    assert rounds == plain
    assert "its files do not say norm_before_residual" in said
    other = write_specforge(random_head(EAGLE3), tmp_path / "other")
    streamed, said = served(tmp_path, "--stages", "3", "--draft-model", str(other))
    assert streamed == plain
    assert "draft head on cpu" in said
