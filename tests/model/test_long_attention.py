"""Attention of long sequences: masks that are views of one that is kept, and scores of some rows at a time."""

from pathlib import Path

import pytest
import torch

from workers.model import attention
from workers.model.attention import FrameContext, Rules, attend_over
from workers.model.chunk_masks import ChunkMasks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_view_is_what_the_frame_would_make(dtype: torch.dtype) -> None:
    kept = ChunkMasks(300)
    like = torch.empty(0, dtype=dtype)
    for length in (2, 3, 16, 1, 128, 5, 6, 7, 8, 9, 2):  # more than are kept
        for end in {length, length + 1, 200, 300}:
            for repeats in (1, 3):
                own = FrameContext({}, end - length, length).mask(None, repeats, like)
                lent = FrameContext({}, end - length, length, chunk_masks=kept).mask(None, repeats, like)
                assert lent.dtype is dtype
                assert torch.equal(lent, own), (length, end, repeats)


def test_a_window_has_masks_of_its_own() -> None:
    like = torch.empty(0)
    lent = FrameContext({}, 20, 4, chunk_masks=ChunkMasks(64)).mask(6, 2, like)
    assert torch.equal(lent, FrameContext({}, 20, 4).mask(6, 2, like))


@pytest.mark.parametrize("together", [1, 4, 5])
@pytest.mark.parametrize(
    "rules",
    [Rules(0.5, softcap=3.0), Rules(0.5, sinks=torch.arange(6.0)), Rules(0.5, softcap=3.0, sinks=torch.arange(6.0))],
)
def test_scores_of_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch, rules: Rules, together: int) -> None:
    query, keys, values = torch.randn(1, 6, 4, 8), torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    mask = FrameContext({}, 26, 4).mask(None, 3, query)
    whole = attend_over(query, keys, values, mask, rules)
    monkeypatch.setattr(attention, "_SCORES", together * 2 * 30)
    torch.testing.assert_close(attend_over(query, keys, values, mask, rules), whole)


def test_masks_of_long_sequences_take_hardly_any_memory() -> None:
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if pages.exists() and "[always]" in pages.read_text():
        pytest.skip("this system gives memory in pages that are longer than a row")
    positions = 1 << 18
    kept = ChunkMasks(positions)
    before = _anonymous_bytes()
    mask = kept.of(64, positions, 1, torch.float32)
    assert float(mask.amax()) == 0  # all of it is read
    assert _anonymous_bytes() - before < mask.nbytes / 8


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10
