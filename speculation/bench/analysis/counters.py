"""The engine's cumulative figures, and what changed between two looks. Pure."""

import operator
from collections.abc import Callable
from typing import TypeVar

import msgspec

from workers.shared.errors import ConfigError
from workers.shared.messages import EngineStats, StageTimings, Status

_S = TypeVar("_S", bound=msgspec.Struct)
_Operator = Callable[[float, float], float]


class Counters(msgspec.Struct):
    """Cumulative, or the difference or sum of two of them."""

    stats: EngineStats
    stages: list[StageTimings]

    @classmethod
    def of(cls, status: Status) -> "Counters":
        """What `status` has counted so far."""
        return cls(status.stats, status.stages)

    def since(self, earlier: "Counters") -> "Counters":
        """What has been added since `earlier`, of the same engine; raises `ConfigError` where it was restarted."""
        if len(self.stages) != len(earlier.stages) or self.stats.counts.cycles < earlier.stats.counts.cycles:
            raise ConfigError("an engine was restarted while it was measured; see its log in the output folder")
        return _combined(self, earlier, operator.sub)

    def plus(self, other: "Counters") -> "Counters":
        """Both together; they come from engines with the same stages."""
        return _combined(self, other, operator.add)


def _combined(one: _S, other: _S, how: _Operator) -> _S:
    """Field by field, whatever fields there are."""
    return type(one)(**{name: _values(getattr(one, name), getattr(other, name), how) for name in one.__struct_fields__})


def _values(one: object, other: object, how: _Operator) -> object:
    if isinstance(one, msgspec.Struct) and isinstance(other, msgspec.Struct):
        return _combined(one, other, how)
    if isinstance(one, list) and isinstance(other, list):
        return [_values(mine, others, how) for mine, others in zip(one, other, strict=True)]
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    return how(one, other)
