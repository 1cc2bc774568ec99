"""How a transformers decoder layer is called. The names of its arguments change between minor versions: only this
file knows them."""

import copy
import inspect
from typing import Any

import transformers
from torch import Tensor, nn

from workers.model.attention import CONTEXT, Rows
from workers.model.rotary import CosSin
from workers.shared.errors import ConfigError

_ROTARY = "position_embeddings"
_POSITIONS = "position_ids"  # of layers that do more with them than to rotate
_STATES = "cache"  # of layers that keep a state; attention is told by CONTEXT where its keys and values are
_SHARED = "shared_kv_states"  # where some layers leave keys and values for later ones, in models that are refused
# Everything our attention function makes superfluous.
_UNUSED = frozenset({"attention_mask", "position_ids", "past_key_values", "cache", "cache_position", "use_cache"})


class DecoderLayer:
    """A decoder layer without cache object; its attention finds the rows in a keyword argument."""

    def __init__(self, module: nn.Module, *, stateful: bool = False, positioned: bool = False) -> None:
        """A `stateful` layer is given the frame's states, a `positioned` one the positions of its rows.

        Raises `ConfigError` where this version of transformers wants arguments that we do not know.
        """
        parameters = dict(inspect.signature(module.forward).parameters)
        hidden = next(iter(parameters))
        passes_on = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        required = {
            name
            for name, p in parameters.items()
            if p.default is inspect.Parameter.empty
            and p.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        }
        unknown = required - {hidden, _ROTARY} - _UNUSED
        rotated = _ROTARY in parameters
        if unknown or not passes_on or not (rotated or stateful):
            raise ConfigError(
                f"transformers {transformers.__version__}: {type(module).__name__}.forward{tuple(parameters)} is not "
                f"called the way we know; install a version that pyproject.toml allows"
            )
        self.module = module
        self._rotated = rotated
        self._stateful = stateful
        self._positioned = positioned
        self._sharing = _SHARED in parameters
        self._fillers = dict.fromkeys(required & _UNUSED)

    def with_module(self, module: nn.Module) -> "DecoderLayer":
        """The same call of another `module`, whose arguments are those of this one."""
        other = copy.copy(self)
        other.module = module
        return other

    def __call__(self, hidden: Tensor, rotary: CosSin | None, rows: Rows) -> Tensor:
        """The layer's output, [1, T, hidden_size], like `hidden`."""
        arguments: dict[str, Any] = {**self._fillers, CONTEXT: rows}
        if self._rotated:
            arguments[_ROTARY] = rotary
        if self._stateful:
            arguments[_STATES] = rows.states
        if self._sharing:
            arguments[_SHARED] = {}
        if self._positioned:
            arguments[_POSITIONS] = rows.positions
        output: Tensor | tuple[Tensor, ...] = self.module(hidden, **arguments)
        return output[0] if isinstance(output, tuple) else output
