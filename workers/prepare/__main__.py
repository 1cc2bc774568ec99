"""`python -m workers.prepare MODEL`: makes a model folder ready to serve and prints its path as the last line.

Progress goes to stderr.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from workers.prepare.prepare import DEFAULT, prepare, prepare_drafting
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import die_with_parent


def link(path: Path, folder: Path) -> None:
    """Makes `path` a link to `folder`, so that configurations can name it; raises `ConfigError` if it is no link."""
    if path.exists() and not path.is_symlink():
        raise ConfigError(f"--link {path}: something else has this name; remove it or choose another")
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder)
    fresh.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 where the model cannot be served (the reason is one line on stderr)."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m workers.prepare", description="Makes a model ready to serve.")
    parser.add_argument("model", nargs="?", default=DEFAULT, help="default, tiny, ORG/NAME, a folder or a .gguf file")
    parser.add_argument("--revision", help="a branch, tag or commit of a model on the hub")
    parser.add_argument("--draft", action="store_true", help="it is to draft, and may be a draft head")
    parser.add_argument("--link", type=Path, help="make this path a symbolic link to the folder")
    options = parser.parse_args(arguments)
    # Our own progress, and other libraries' progress bars, but not their chatter about requests and kernels.
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    logging.getLogger("workers").setLevel(logging.INFO)
    try:
        folder = prepare_drafting(options.model) if options.draft else prepare(options.model, options.revision)
        if options.link is not None:
            link(options.link, folder)
    except ConfigError as error:
        sys.stderr.write(f"echelon: {error}\n")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
