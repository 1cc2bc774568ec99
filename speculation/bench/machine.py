"""What the numbers were measured on."""

import os
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime

from speculation.bench.analysis.report import Provenance
from speculation.kept_calibrations import processor_name
from speculation.training.provenance import command_line, git_commit, package_versions, python_version


def provenance(arguments: Sequence[str], program: str = "") -> Provenance:
    """Of a bench that begins now, of `echelon bench` or another program."""
    command = command_line(program or "speculation.bench", arguments)
    return Provenance(
        command=command if program else command.replace("python -m speculation.bench", "echelon bench"),
        git=git_commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        python=python_version(),
        versions=package_versions(),
        cpu=processor_name(),
        cores=os.cpu_count() or 0,
        memory_gib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30,
        gpus=_gpus(),
        load=os.getloadavg()[0],
    )


def _gpus() -> list[str]:
    """Names of the GPUs, as the driver's own tool lists them; none where it is not there."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.splitlines()
