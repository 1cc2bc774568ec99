"""Binding to the argument names of other versions of transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workers.model.attention import FrameContext
from workers.model.decoder_layer import DecoderLayer
from workers.shared.errors import ConfigError

ROTARY = (torch.zeros(1), torch.ones(1))
FRAME = FrameContext({}, 0, 1)


class OlderNames(nn.Module):
    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        past_key_values: object,
        cache_position: Tensor | None = None,
        position_embeddings: object = None,
        **kwargs: Any,
    ) -> Tensor:
        assert attention_mask is None
        assert past_key_values is None
        assert position_embeddings is ROTARY
        assert kwargs == {"echelon_frame": FRAME}
        return x + 1


class UnknownArgument(nn.Module):
    def forward(self, hidden_states: Tensor, position_embeddings: object, router: object, **kwargs: Any) -> Tensor:
        return hidden_states


class SwallowsNothing(nn.Module):
    def forward(self, hidden_states: Tensor, position_embeddings: object) -> Tensor:
        return hidden_states


class NoRotary(nn.Module):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        return hidden_states


def test_superfluous_arguments_are_filled_whatever_their_names() -> None:
    assert DecoderLayer(OlderNames())(torch.zeros(1), ROTARY, FRAME) == 1


@pytest.mark.parametrize("module", [UnknownArgument(), SwallowsNothing(), NoRotary()])
def test_unknown_ways_of_calling_are_refused_when_loading(module: nn.Module) -> None:
    with pytest.raises(ConfigError, match=f"{type(module).__name__}.forward"):
        DecoderLayer(module)
