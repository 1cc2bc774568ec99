"""Masks that are views of one that is kept, against those that a frame makes for itself."""

import pytest
import torch

from workers.model.attention import FrameContext
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
