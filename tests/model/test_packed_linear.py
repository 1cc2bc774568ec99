"""Packed layers against the weights that the gguf library unpacks."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from workers.model.linear.choose import packed_embedding, packed_linear
from workers.model.linear.four_bit import FourBitLinear
from workers.model.linear.groups import decode
from workers.model.linear.whole import PackedEmbedding, UnpackingLinear
from workers.model.linear.wide import WIDE_FOUR_BIT, has_wide_products
from workers.shared.errors import ConfigError
from workers.shared.model_files.blocks import BITS, BLOCKS, GROUP, packed_shape
from workers.shared.packed.weight import PackedWeight

ROWS, COLUMNS = 77, 512


def random_blocks(kind: str, rows: int = ROWS) -> torch.Tensor:
    """Any bytes are valid blocks; only the float16 numbers in them are chosen, so that none is huge."""
    random = np.random.default_rng(len(kind) + rows)
    packed = random.integers(0, 256, packed_shape(kind, (rows, COLUMNS)), dtype=np.uint8)
    blocks = packed.reshape(rows, -1, BLOCKS[kind].nbytes)
    numbers = random.uniform(0.01, 0.1, (*blocks.shape[:2], 2)).astype(np.float16)
    if kind in ("Q4_1", "Q5_1"):
        numbers[..., 1] *= -10  # these add the second number: as much below zero as above
    count = 4 if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 2
    place = slice(208, 210) if kind == "Q6_K" else slice(0, count)
    blocks[..., place] = numbers.view(np.uint8)[..., :count]
    return torch.from_numpy(packed)


def weight_of(kind: str, packed: torch.Tensor) -> PackedWeight:
    return PackedWeight(
        kind, "gguf", (len(packed), COLUMNS), {"blocks": "w"}, packed.nbytes, BITS.get(kind, 0), GROUP * (kind in BITS)
    )


def layer_of(kind: str, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.nn.Module:
    return packed_linear(weight_of(kind, packed), {"blocks": packed}, bias)


def unpacked(kind: str, packed: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(dequantize(packed.numpy(), GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", sorted(BITS))
def test_groups_are_what_the_library_unpacks(kind: str) -> None:
    packed = random_blocks(kind)
    groups = decode(kind, packed)
    assert int(groups.values.max()) < 1 << BITS[kind]
    torch.testing.assert_close(groups.dense(), unpacked(kind, packed), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", sorted(BLOCKS))
@pytest.mark.parametrize("chunk", [64 * COLUMNS, 1 << 21])
def test_products_differ_by_rounding_only(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.model.linear.choose._CHUNK", chunk)
    packed, bias = random_blocks(kind), torch.randn(ROWS)
    layer = layer_of(kind, packed, bias)
    rows = torch.randn(2, 3, COLUMNS)
    expected = rows @ unpacked(kind, packed).T + bias
    found = layer(rows)
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.006 * expected.norm()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
def test_a_row_has_the_same_bits_whatever_is_beside_it(kind: str) -> None:
    layer = layer_of(kind, random_blocks(kind))
    rows = torch.randn(9, COLUMNS)
    together = layer(rows)
    assert all(torch.equal(layer(rows[i : i + 1])[0], together[i]) for i in range(9))


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_K", "Q8_0"])
def test_many_rows_are_multiplied_otherwise(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as well: pieces of two units, and what is left of the rows."""
    if not has_wide_products():
        pytest.skip("this processor has no product of bfloat16")
    monkeypatch.setattr("workers.model.linear.four_bit.PIECE", 128 * COLUMNS)
    packed, rows = random_blocks(kind, rows=333), torch.randn(WIDE_FOUR_BIT + 1, COLUMNS)
    layer, expected = layer_of(kind, packed), rows @ unpacked(kind, packed).T
    found = layer(rows)
    assert not torch.equal(found[:WIDE_FOUR_BIT], layer(rows[:WIDE_FOUR_BIT]))
    assert (found - expected).norm() < 0.006 * expected.norm()


def test_without_products_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    packed, rows = random_blocks("Q4_K"), torch.randn(2, COLUMNS)
    layer = layer_of("Q4_K", packed)
    assert isinstance(layer, UnpackingLinear)
    assert torch.equal(layer(rows), rows @ unpacked("Q4_K", packed).T)
    assert weight_of("Q4_K", packed).held_bytes(products=False) == packed.nbytes


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_memory_is_what_is_said(kind: str) -> None:
    layer = layer_of(kind, random_blocks(kind))
    if not isinstance(layer, FourBitLinear):
        pytest.skip("this processor has no products with packed weights")
    assert weight_of(kind, random_blocks(kind)).held_bytes(products=True) == layer.nbytes


def test_an_embedding_that_is_not_all_numbers_is_refused() -> None:
    packed = random_blocks("Q8_0")
    packed[-1, :2] = torch.tensor([0x00, 0x7E], dtype=torch.uint8)  # a scale of float16 that is no number
    with pytest.raises(ConfigError, match="not numbers"):
        packed_embedding(weight_of("Q8_0", packed), {"blocks": packed}, torch.float32, 1.0)


def test_embedding() -> None:
    packed = random_blocks("Q8_0")
    embedding = PackedEmbedding(weight_of("Q8_0", packed), {"blocks": packed}, torch.float32, 2.0)
    tokens = torch.tensor([[5, 76, 5]])
    assert torch.equal(embedding(tokens), 2 * unpacked("Q8_0", packed)[tokens])
