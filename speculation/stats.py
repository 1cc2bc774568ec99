"""The engine's counters: what `Status` says of its life so far."""

import copy
import time
from collections.abc import Iterable

from workers.shared.messages import EngineStats, SpeculationCounts


class StatsRecorder:
    """Counts what happens, as it happens. Times are of the monotonic clock, in nanoseconds."""

    def __init__(self) -> None:
        self._stats = EngineStats()
        self._last_sample_ns = 0
        self._last_index = -1  # of the frame it was of

    def verified(self, since_ns: int | None) -> None:
        """A sample has verified tokens; the one before of the same request came `since_ns` ago, if there was one."""
        if since_ns is not None:
            self._stats.rank.decode_ns += since_ns

    def sampled(self, index: int, *, full: bool) -> None:
        """Frame number `index` has left the pipeline; `full`: as a decode frame, while every stage had a frame."""
        now = time.perf_counter_ns()
        if full and index == self._last_index + 1:
            self._stats.full_cycles += 1
            self._stats.full_cycle_ns += now - self._last_sample_ns
        self._last_sample_ns, self._last_index = now, index

    def committed(self, nanoseconds: int) -> None:
        """Handling a sample took so long."""
        self._stats.rank.commit_ns += nanoseconds

    def drafted(self, nanoseconds: int) -> None:
        """The drafter has answered, after so long."""
        self._stats.drafts += 1
        self._stats.draft_ns += nanoseconds

    @property
    def draft_seconds(self) -> float:
        """What the drafter took over all its answers so far."""
        return self._stats.draft_ns * 1e-9

    def looked_up(self, prompt: int, reused: int) -> None:
        """A request has begun, `reused` of the `prompt` tokens of which were held already."""
        self._stats.prefix_cache_queries += prompt
        self._stats.prefix_cache_hits += reused

    def ended(self, counts: SpeculationCounts) -> None:
        """A request with these counts has ended."""
        self._stats.counts.add(counts)

    def report(self, running: Iterable[SpeculationCounts], *, announce_ns: int, drafter_failures: int) -> EngineStats:
        """Everything counted so far; `running` are the counts of requests that have not ended."""
        stats = copy.deepcopy(self._stats)
        for counts in running:
            stats.counts.add(counts)
        stats.rank.announce_ns = announce_ns
        stats.drafter_failures = drafter_failures
        return stats
