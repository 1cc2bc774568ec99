"""See the package."""

from tests.boards.grafana import BOARDS, FOLDER, written

for name in BOARDS:
    (FOLDER / f"{name}.json").write_text(written(name))
