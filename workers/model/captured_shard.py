"""A shard whose short frames are recorded once, for each slot and number of keys, and then repeated.

In a recorded frame nothing depends on the host: token ids, positions and hidden states are tensors that are written
before it is repeated, keys and values go where the positions say, and a mask hides the keys behind them.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from workers.decisions.key_buckets import key_bucket, key_buckets
from workers.model.attention import MaskedRows, Rules, attend_over, put, unseen
from workers.model.decoder_layer import DecoderLayer
from workers.model.kv_cache import KVSlice
from workers.model.recorder import Recorder, Work
from workers.model.shard import Shard
from workers.shared.frames import Branches, Move
from workers.shared.progress import Progress


class StaticRows(MaskedRows):
    """The rows of a recorded frame: `Rows` whose positions are known to the device only."""

    states = None  # layers that keep some are not recorded

    def __init__(self, kv: KVSlice, slot: int, positions: Tensor, keys: int) -> None:
        """`positions` is int64 [T]; the rows look at the first `keys` positions of a slot."""
        super().__init__()
        self._layers = kv.layers(slot)
        self._scratch = kv.scratch
        self._positions = positions
        self._keys = keys

    @property
    def positions(self) -> Tensor:
        """[1, T]."""
        return self._positions[None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Rows`."""
        keys, values = (held[:, :, self._scratch :] for held in self._layers[layer])
        for held, computed in ((keys, key), (values, value)):
            put(held, self._positions, computed)
        mask = self.mask(rules.window, query.shape[1] // key.shape[1], query)
        return attend_over(query, keys[:, :, : self._keys], values[:, :, : self._keys], mask, rules)

    def _hidden(self, window: int | None, device: torch.device) -> Tensor:
        """See `MaskedRows`: of all keys, however short a window is."""
        return unseen(self._positions, torch.arange(self._keys, device=device), window)


class _Tensors:
    """What recorded frames of T tokens are given and leave, whatever their slot and number of keys."""

    def __init__(self, shard: Shard, length: int) -> None:
        def room(*shape: int, dtype: torch.dtype = shard.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=shard.device)

        self.given = room(2, length, dtype=torch.int64)  # token ids; positions
        self.states = room(shard.layers + 1, length, shard.hidden_size)  # what came in, and behind each layer
        self.unnormed = room(length, shard.hidden_size)  # what the head is given
        self.logits = room(length, shard.vocab_size, dtype=torch.float32) if shard.has_head else None


class CapturedShard:
    """`Layers` of a shard without recurrent states; frames of other lengths than those recorded go through it as ever.

    A frame's bits depend on its tokens, its position and its length, and on nothing that came before.
    """

    def __init__(
        self,
        shard: Shard,
        recorder: Recorder,
        lengths: Collection[int],
        alive: Callable[[], None] = lambda: None,
        layers: Sequence[DecoderLayer] | None = None,
    ) -> None:
        """Records frames of each of `lengths` tokens, with progress on stderr; `alive` is called after each.

        `layers` are what recorded frames go through in place of the shard's own, such as its `fused`.

        Raises `RuntimeError` where that cannot be.
        """
        self.hidden_size, self.dtype, self.device = shard.hidden_size, shard.dtype, shard.device
        self.weight_bytes, self.kv_bytes = shard.weight_bytes, shard.kv_bytes
        self._shard = shard
        self._layers = layers
        self._tensors = {length: _Tensors(shard, length) for length in lengths}
        wanted = [
            (length, slot, keys)
            for length in lengths
            for slot in range(shard.kv.sequences)
            for keys in key_buckets(shard.kv.max_len)
        ]
        label = f"recording what short frames do on {shard.device}"
        with Progress(label, shown="{:.3g} frames".format) as progress, torch.inference_mode():
            self._frames: dict[tuple[int, int, int], Work] = {}
            for done, which in enumerate(wanted, 1):
                self._frames[which] = recorder.record(self._frame(*which))
                progress.update(done, len(wanted))
                alive()
            self._heads = {length: recorder.record(self._head(length)) for length in lengths if shard.has_head}

    def observe(self, anchors: Sequence[int]) -> None:
        """See `Layers`."""
        self._shard.observe(anchors)

    def copy(self, source: int, target: int, positions: int) -> None:
        """See `Layers`."""
        self._shard.copy(source, target, positions)

    def release(self, sequence: int, kept: int) -> None:
        """See `Layers`."""
        self._shard.release(sequence, kept)

    def move(self, sequence: int, moves: Sequence[Move]) -> None:
        """See `Layers`."""
        self._shard.move(sequence, moves)

    @torch.inference_mode()
    def forward(
        self,
        sequence: int,
        position: int,
        tokens: Sequence[int],
        hidden: Tensor | None,
        taps: list[Tensor] | None = None,
        branches: Branches | None = None,
    ) -> Tensor:
        """See `Shard.forward`."""
        length, shard = len(tokens), self._shard
        if branches is not None or length not in self._tensors:
            return shard.forward(sequence, position, tokens, hidden, taps, branches)
        shard.check(position, length, hidden)
        shard.kv.begin(sequence, position, length)
        tensors = self._tensors[length]
        places = range(position, position + length)
        ids = torch.tensor([tokens, places], pin_memory=self.device.type == "cuda")  # so that the host does not wait
        tensors.given.copy_(ids, non_blocking=True)
        if hidden is not None:
            tensors.states[0].copy_(hidden)
        self._frames[length, sequence, key_bucket(places.stop, shard.kv.max_len)]()
        if taps is not None:
            taps.extend(tensors.states[layer + 1].clone() for layer in shard.tapped)
        return tensors.states[-1].clone()  # the next frame writes there

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Layers`."""
        return self.row_logits(hidden[-1:])[0]

    @torch.inference_mode()
    def row_logits(self, hidden: Tensor) -> Tensor:
        """See `Layers`."""
        repeat = self._heads.get(len(hidden))
        if repeat is None:
            return self._shard.row_logits(hidden)
        tensors = self._tensors[len(hidden)]
        tensors.unnormed.copy_(hidden)
        repeat()
        assert tensors.logits is not None
        return tensors.logits.clone()

    def _frame(self, length: int, slot: int, keys: int) -> Work:
        shard, tensors = self._shard, self._tensors[length]
        ids, positions = tensors.given

        def work() -> None:
            rows = StaticRows(shard.kv, slot, positions, keys)
            if shard.embeds:
                tensors.states[0].copy_(shard.embed(ids[None])[0])
            behind = shard.behind_layers(tensors.states[:1], shard.rotary.rows(positions), rows, self._layers)
            for state, hidden in zip(tensors.states[1:], behind, strict=True):
                state.copy_(hidden[0])

        return work

    def _head(self, length: int) -> Work:
        tensors = self._tensors[length]

        def work() -> None:
            assert tensors.logits is not None
            tensors.logits.copy_(self._shard.row_logits(tensors.unnormed))

        return work
