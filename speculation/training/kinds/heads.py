"""EAGLE-3 and P-EAGLE heads: trained as they draft, from true features once and from then on without."""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from speculation.heads.checkpoint import save_head
from speculation.heads.config import HeadConfig, check_features, default_features
from speculation.heads.network import EagleHead
from speculation.pdm.target import read_final_norm, read_head, read_target_config, read_tensor
from speculation.training.examples.data import Example
from speculation.training.kinds.initial import Ridge
from speculation.training.kinds.module import draft_vocabulary
from speculation.training.kinds.unrolled import Unrolled
from speculation.training.loss import DraftLoss, Score
from speculation.training.settings import TrainingSettings
from speculation.training.teacher import Targets, Teacher
from workers.shared.errors import ConfigError
from workers.shared.model_files.facts import head_dim
from workers.shared.model_files.tensor_sizes import EMBEDDING

_STD = 0.02
_SHARE = 0.7  # of chains that go on from step to step, of a head that drafts in one pass


class HeadLearner:
    """Trains a head to draft so many tokens a round as there are steps."""

    def __init__(
        self, settings: TrainingSettings, model: Path, examples: Sequence[Example], device: torch.device, parallel: bool
    ) -> None:
        """The untrained head of the target in the model folder `model`; `parallel`: P-EAGLE, all drafts in one pass.

        Raises `ConfigError` where the hidden states that it is to read are not the target's.
        """
        self._settings = settings
        self._examples = examples
        self._device = device
        target = read_target_config(model)
        count = target.num_hidden_layers
        features = settings.anchors or default_features(count)
        check_features(features, count, "--anchors")
        ids = draft_vocabulary(settings, model, examples)
        said = target.to_dict()
        config = HeadConfig(
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            attention_heads=target.num_attention_heads,
            kv_heads=target.num_key_value_heads,
            head_dim=head_dim(said),
            layers=settings.layers,
            vocab_size=target.vocab_size,
            draft_vocab_size=target.vocab_size if ids is None else len(ids),
            features=features,
            target_hidden_size=target.hidden_size,
            rms_norm_eps=target.rms_norm_eps,
            rope=dict(target.rope_parameters),
            max_position_embeddings=target.max_position_embeddings,
            own_head=settings.head == "own",
            mask_token_id=target.vocab_size - 1 if parallel else None,
        )
        self._wanted = count - 1  # what the target's last layer reads
        head = EagleHead(config, ids)
        self._initialise(head, model)
        self.network: EagleHead = head.to(device)
        cap = getattr(target, "final_logit_softcapping", None)
        self._loss = DraftLoss(read_head(model).float().to(device), head.draft_to_target, cap)

    @torch.no_grad()
    def _initialise(self, head: EagleHead, model: Path) -> None:
        """Layers start as the target's last, which know nothing of the token beside the feature, the head as its."""
        settings, hidden = self._settings, head.config.hidden_size
        generator = torch.Generator().manual_seed(settings.seed)
        target = read_target_config(model)
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, _STD, generator=generator)
        first = target.num_hidden_layers - settings.layers
        for place, layer in enumerate(head.layers):
            for name, parameter in layer.named_parameters():
                if name == "hidden_norm.weight":
                    name = "input_layernorm.weight"
                found = read_tensor(model, f"model.layers.{first + place}.{name}")
                if found.shape == parameter.shape:
                    parameter.copy_(found)
                else:  # of embedding and feature side by side
                    parameter[:, hidden:] = found
        dict(head.named_parameters())["norm.weight"].copy_(read_final_norm(model, target))
        head.borrow(partial(read_tensor, model, EMBEDDING), partial(read_head, model))
        if settings.head == "own":
            head.lm_head.weight.copy_(read_head(model)[head.draft_to_target])

    @property
    def states(self) -> tuple[int, ...]:
        """The embedding, the head's hidden states, and what `fc` is fitted to."""
        fits = self._settings.init_projections == "fit" and self._wanted not in self.network.anchors
        return (0, *self.network.anchors, self._wanted) if fits else (0, *self.network.anchors)

    def start(self, folder: Path) -> None:
        """See `Learner`."""
        raise ConfigError(f"--start {folder} is not for --kind {self._settings.kind}: it takes a draft module")

    def begin(self, teacher: Teacher, *, fresh: bool) -> None:
        """See `Learner`: `fc` starts as the best linear guess of what the target's last layer reads."""
        self._teacher = teacher
        if fresh and self._settings.init_projections == "fit":
            head = self.network
            order = [1 + head.anchors.index(index) for index in head.config.features]
            wanted = self.states.index(self._wanted)
            fit = Ridge(teacher, self._examples, order, wanted)
            with torch.no_grad():
                head.fc.weight.copy_(fit.solve(head.fc.in_features))

    def learn(self, rng: random.Random, batch: Sequence[int]) -> Score:
        """See `Learner`; every step of the unrolled draft counts less than the one before."""
        settings, total = self._settings, Score()
        targets = self._teacher.targets(batch)
        weights = [settings.decay**step for step in range(settings.unroll)]
        outputs, gradients = [], []
        with torch.autocast(self._device.type, torch.bfloat16, enabled=settings.autocast):
            for step, (output, newest) in enumerate(self._unroll(batch, targets, rng)):
                weight = weights[step] / sum(weights)
                score, gradient = self._loss.gradient(self.network, output, targets, newest, weight)
                total.add(score)
                outputs.append(output)
                gradients.append(gradient)
        if outputs:
            torch.autograd.backward(outputs, gradients)
        return total

    def validate(self, indices: Sequence[int]) -> dict[str, dict[str, float]]:
        """By the draft's place in its round and the temperature, with the true tokens before it."""
        totals: dict[str, Score] = {}
        for index in indices:
            targets = self._teacher.targets([index])
            with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._settings.autocast):
                for step, (output, newest) in enumerate(self._unroll([index], targets)):
                    score = self._loss.score(self.network, output, targets, newest)
                    name = f"d{step + 1} T{self._examples[index].temperature:g}"
                    totals.setdefault(name, Score()).add(score)
        return {name: score.means() for name, score in sorted(totals.items())}

    def save(self, folder: Path) -> None:
        """A head's folder, as speculators and vLLM read it."""
        save_head(self.network, folder, self._settings.target_name)

    def _unroll(
        self, batch: Sequence[int], targets: Targets, rng: random.Random | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs `[chains, H]` of each step, and the tokens `[chains]` that are newest where they draft.

        A chain's base is the position of its last true feature: the token after it is verified, and the newest. Without
        `rng` no chain is left out.
        """
        examples = [self._examples[index] for index in batch]
        offsets = [0, *accumulate(map(len, examples))][:-1]
        lengths = [max(0, len(example) - 2) for example in examples]
        head, device = self.network, self._device
        tokens = torch.tensor([token for example in examples for token in example.tokens], device=device)
        spans = [torch.arange(at, at + length, device=device) for at, length in zip(offsets, lengths, strict=True)]
        true = torch.cat(spans)
        rows = Unrolled(lengths, device)
        tables = head.rotary_tables(max(lengths) + self._settings.unroll)
        states = targets.anchors[true, 1 : 1 + len(head.anchors)]
        features = head.features(states)
        output = head(tokens[true + 1], features, tables.rows(rows.positions[0]), rows)
        bases = [
            torch.arange(max(0, e.prompt_length - 1), length, device=device)
            for e, length in zip(examples, lengths, strict=True)
        ]
        starts = [0, *accumulate(lengths)][:-1]
        output = output[torch.cat([start + of for start, of in zip(starts, bases, strict=True)])]
        own = torch.zeros(len(output), 0, dtype=torch.int64, device=device)
        for step in range(self._settings.unroll):
            if step:
                kept = [self._kept(of, length - step, rng) for of, length in zip(bases, lengths, strict=True)]
                mask = torch.cat(kept)
                bases = [of[k] for of, k in zip(bases, kept, strict=True)]
                if not int(mask.sum()):
                    return
                own = rows.step(bases, own[mask])
                carried = output[mask]
                newest = torch.cat([at + of for at, of in zip(offsets, bases, strict=True)]) + step + 1
                output = head(*self._pairs(tokens[newest], carried), tables.rows(rows.positions[0]), rows)
            else:
                newest = torch.cat([at + of for at, of in zip(offsets, bases, strict=True)]) + 1
            yield output, newest

    def _pairs(self, tokens: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and features of rows without true features, behind the outputs `carried` `[chains, H]`."""
        head = self.network
        if head.config.mask_token_id is None:
            return tokens, head.fed_back(carried)
        return torch.full_like(tokens, head.config.mask_token_id), head.masked_feature().expand(len(carried), -1)

    def _kept(self, bases: Tensor, before: int, rng: random.Random | None) -> Tensor:
        """Which chains get a row more, bool `[chains]`: those that the example still has a token for, or a share."""
        kept = bases < before
        if rng is not None and self.network.config.parallel:
            share = torch.tensor(
                [rng.random() < _SHARE for _ in range(len(bases))], dtype=torch.bool, device=bases.device
            )
            kept &= share
        return kept
