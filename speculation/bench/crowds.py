"""Streams side by side: every contender answers 1, 2, 4... prompts at once."""

from collections.abc import Sequence

from msgspec.structs import replace

from speculation.bench.analysis.cells import Answer
from speculation.bench.analysis.crowd import CrowdRow, crowd_row
from speculation.bench.configuration import Contender
from speculation.bench.prompts import Prompt
from speculation.bench.run import Lane, Start, Work, side_by_side

_WARM_UP_TOKENS = 8


def run_crowds(work: Work, counts: Sequence[int], start: Start) -> list[CrowdRow]:
    """Rows by contender and number of streams; repeats are rounds with other prompts. Raises `ConfigError`."""
    prompts = [prompt for data_set in work.data_sets for prompt in data_set.prompts]
    rows: list[CrowdRow] = []
    for group in work.groups:
        waiting = list(group)
        while waiting:
            with side_by_side(waiting, start, lambda _: None, work) as lanes:
                waiting = waiting[len(lanes) :]
                rows += _measure(work, counts, lanes, prompts)
    order = [contender for group in work.groups for contender in group]
    return sorted(rows, key=lambda row: (order.index(row.contender), row.streams))


def _measure(work: Work, counts: Sequence[int], lanes: Sequence[Lane], prompts: Sequence[Prompt]) -> list[CrowdRow]:
    """All contenders that are up, with so many streams, in turn."""
    for lane in lanes:  # what is asked at once may go another way than what a start was warmed up with
        lane.running.answers(prompts[:2], work.temperatures[0], _WARM_UP_TOKENS)
    rounds: dict[tuple[Contender, int], list[list[Answer]]] = {}
    for repeat in range(work.repeats):
        for count in counts:
            chosen = [_asked(prompts, repeat * sum(counts) + place) for place in range(count)]
            for lane in lanes:
                answers = lane.running.answers(chosen, work.temperatures[0], work.settings.max_tokens)
                rounds.setdefault((lane.contender, count), []).append(answers)
    return [crowd_row(contender, answers) for (contender, _), answers in rounds.items()]


def _asked(prompts: Sequence[Prompt], number: int) -> Prompt:
    """Prompt `number`, over and over again, each time with another beginning, as nothing is to be in a slot already."""
    prompt = prompts[number % len(prompts)]
    return replace(prompt, question=str(number), text=f"{number}. {prompt.text}")
