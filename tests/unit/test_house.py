"""The house fits in a head: few files a folder, short files, and import contracts that no new folder escapes."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("server", "workers", "speculation")
MOST_FILES = 16
MOST_LINES = 400


def folders() -> set[Path]:
    return {file.parent for package in PACKAGES for file in (ROOT / package).rglob("*.py")}


def modules(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.py") if file.name != "__init__.py"]


@pytest.fixture(scope="module")
def contracts() -> dict[str, dict[str, Any]]:
    """The import contracts, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["name"]: contract for contract in project["tool"]["importlinter"]["contracts"]}


def rooms(package: str) -> set[str]:
    """The folders right inside a package, as modules."""
    return {".".join(folder.relative_to(ROOT).parts) for folder in folders() if folder.parent == ROOT / package}


def test_no_folder_is_too_full() -> None:
    assert [folder for folder in folders() if len(modules(folder)) > MOST_FILES] == []


def test_no_file_is_too_long() -> None:
    files = [file for top in (*PACKAGES, "tests") for file in (ROOT / top).rglob("*.py")]
    assert [file for file in files if len(file.read_text().splitlines()) > MOST_LINES] == []


def test_a_name_stands_for_one_class() -> None:
    """Whoever searches for a name finds one thing. Names of one file's own (`_Name`) may repeat."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    classes = [
        node.name for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1 and not name.startswith("_")] == []


def test_every_room_of_the_ground_floor_is_torch_free_or_closed_to_the_server(
    contracts: dict[str, dict[str, Any]],
) -> None:
    closed = set(
        contracts["Of the ground floor, the API server and the launcher know the torch-free room only"][
            "forbidden_modules"
        ]
    )
    free = contracts["The API server, the launcher and the torch-free room never import torch"]["source_modules"]
    assert rooms("workers") - {"workers.shipped_weights"} == closed | {room for room in free if room != "server"}


def test_every_folder_of_decisions_is_held_to_be_pure(contracts: dict[str, dict[str, Any]]) -> None:
    pure = set(contracts["Decisions are pure: no torch, no sockets"]["source_modules"])
    assert {".".join(folder.relative_to(ROOT).parts) for folder in folders() if folder.name == "decisions"} <= pure


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "docs/structure.md", "docs/design.md"])
def test_pages_name_files_that_exist(page: str) -> None:
    named = re.findall(r"`((?:server|workers|speculation|tests|docs|deploy)/[\w./-]*)`", (ROOT / page).read_text())
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []
