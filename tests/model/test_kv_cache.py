"""Slots of keys and values: what is copied and what is given back, position by position."""

import mmap

import torch

from workers.model.kv_cache import KVSlice
from workers.shared.model_files.layers import KVShape

LAYERS, HEADS, LENGTH, SIZE = range(3, 6), 2, 512, 16


def slots(dtype: torch.dtype = torch.float32) -> KVSlice:
    shapes = dict.fromkeys(LAYERS, KVShape(HEADS, SIZE, SIZE))
    made = KVSlice(shapes, sequences=2, max_len=LENGTH, dtype=dtype, device=torch.device("cpu"))
    for sequence in range(2):
        for layer, (keys, values) in made.layers(sequence).items():
            keys.copy_(torch.arange(keys.numel()).view_as(keys) % 100 + layer)
            values.copy_(-keys - sequence)
    return made


def test_what_is_released_reads_as_never_written_and_what_is_kept_stays() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for kept in (0, 1, 100, LENGTH):
            cache, before = slots(dtype), slots(dtype)
            cache.release(1, kept)
            page = mmap.PAGESIZE // (SIZE * dtype.itemsize)  # positions
            for layer in LAYERS:
                for mine, was in zip(cache.layers(1)[layer], before.layers(1)[layer], strict=True):
                    assert torch.equal(mine[:, :, :kept], was[:, :, :kept])
                    if kept + 2 * page < LENGTH:
                        assert not mine[:, :, kept + page : LENGTH - page].any()
                for mine, was in zip(cache.layers(0)[layer], before.layers(0)[layer], strict=True):
                    assert torch.equal(mine, was), "the other slot"


def test_a_copy_is_bit_by_bit_and_ends_where_it_is_told_to() -> None:
    cache, before = slots(), slots()
    cache.copy(0, 1, 70)
    for layer in LAYERS:
        for mine, source, was in zip(
            cache.layers(1)[layer], cache.layers(0)[layer], before.layers(1)[layer], strict=True
        ):
            assert torch.equal(mine[:, :, :70], source[:, :, :70])
            assert torch.equal(mine[:, :, 70:], was[:, :, 70:])


def test_a_stage_without_layers_has_nothing_to_keep() -> None:
    empty = KVSlice({}, sequences=1, max_len=8, dtype=torch.float32, device=torch.device("cpu"))
    empty.release(0, 3)
    assert (empty.nbytes, empty.layers(0)) == (0, {})
