"""What plots show, and that they are drawn."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from speculation.bench.__main__ import plot
from speculation.bench.analysis.breakdown import CycleParts
from speculation.bench.analysis.curves import breakdown, emulation, law, speedup_by_acceptance, speedup_by_stages
from speculation.bench.analysis.figures import ALL, TableRow, rows
from tests.unit.bench.bench_cells import answer, cell
from workers.shared.emulation import Emulation

PARTS = CycleParts(1, 2, 3, 4, 5, 6, 7, 8, 9)


@dataclass(frozen=True)
class At:
    """The figures of a row that plots look at."""

    method: str
    stages: int
    dataset: str = "one"
    speedup: float | None = None
    acceptance: float | None = None
    parts: CycleParts | None = None
    temperature: float = 0.0

    def row(self) -> TableRow:
        (row,) = rows([cell(self.method, self.stages, [answer("a", [1, 2])], temperature=self.temperature)])
        figures = {"speedup_none": self.speedup, "acceptance": self.acceptance, "cycle_parts": self.parts}
        return replace(row, dataset=self.dataset, **figures)


def table(*made: At) -> list[TableRow]:
    return [one.row() for one in made]


def test_bars_are_contenders_with_all_data_sets_together() -> None:
    other = CycleParts(*[0.0] * 9)
    made = table(
        At("ngram", 3, parts=other), At("ngram", 3, ALL, parts=PARTS), At("none", 2, parts=PARTS), At("hf", 1)
    )  # fmt: skip
    none, ngram = breakdown(made)
    assert (none.label, ngram.label) == ("none, n=2, T=0", "ngram, n=3, T=0")
    assert ngram.stage == {"forward": 1, "sample": 2, "emulate": 3, "send": 4, "receive": 5, "wait": 6}
    assert ngram.rank == {"announce": 7, "commit": 8, "draft": 9}


def test_speed_up_against_stages_is_a_line_a_method() -> None:
    made = table(
        At("ngram", 5, speedup=3.0), At("ngram", 2, speedup=1.5), At("pdm", 2, speedup=1.8), At("single", 1)
    )  # fmt: skip
    found = dict(speedup_by_stages(made))
    assert found == {"ngram, T=0": [(2, 1.5), (5, 3.0)], "pdm, T=0": [(2, 1.8)]}


def test_speed_up_against_acceptance_has_a_point_a_data_set_and_leaves_rounds_out() -> None:
    made = table(
        At("ngram", 2, "one", 1.5, 0.8), At("ngram", 2, "two", 1.2, 0.4), At("ngram", 2, ALL, 1.35, 0.6),
        At("dtv-ngram", 2, "one", 1.1, 0.7), At("none", 2, "one", 1.0),
    )  # fmt: skip
    assert dict(speedup_by_acceptance(made)) == {"ngram, n=2": [(0.4, 1.2), (0.8, 1.5)]}
    assert [series.label for series in law(made)] == ["law, n=2"]


@given(st.integers(1, 16))
def test_the_law_goes_from_1_to_n(stages: int) -> None:
    (series,) = law(table(At("ngram", stages, speedup=1.0, acceptance=0.5)), points=11)
    (first, slowest), (middle, half), (last, fastest) = series.points[0], series.points[5], series.points[-1]
    assert (first, middle, last) == (0, 0.5, 1)
    assert slowest == pytest.approx(1)
    assert half == pytest.approx(2 * stages / (stages + 1))
    assert fastest == pytest.approx(stages)


def test_emulation_is_told_once() -> None:
    made = table(At("none", 2), At("none", 3), At("none", 4))
    assert emulation(made) == ""
    made[0].emulated = made[1].emulated = Emulation(stage_ms=5)
    assert emulation(made) == "emulated: stage 5 ms"


def drawable() -> list[TableRow]:
    return table(
        At("none", 2, speedup=1.0, parts=PARTS),
        At("ngram", 2, speedup=1.4, acceptance=0.5, parts=PARTS),
        At("dtv-ngram", 2, speedup=1.2, acceptance=0.5, parts=PARTS),
    )


def test_plots_are_images_that_say_what_was_emulated(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = drawable()
    made[0].emulated = Emulation(stage_ms=5)
    plot(made, tmp_path)
    names = ("cycle_breakdown", "speedup_by_stages", "speedup_by_acceptance")
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "emulated: stage 5 ms" in (tmp_path / f"{name}.svg").read_text()


def test_what_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(table(At("hf", 1)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "speculation.bench.plots", raising=False)
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    plot(drawable(), tmp_path)
    assert "pip install 'echelon[bench]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
