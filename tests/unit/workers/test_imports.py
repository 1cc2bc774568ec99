"""Processes that do not compute start without torch, whose import takes seconds of a core."""

import subprocess
import sys

import pytest

_CHECK = "; import sys; sys.exit('torch is imported' if 'torch' in sys.modules else 0)"


@pytest.mark.parametrize(
    "program",
    [
        "import speculation.__main__, speculation.drafters.ngram, speculation.drafters.none",
        "import workers.__main__, workers.hosts.agent",
        "from workers.hosts.devices import describe; describe('cpu', measure=False)",
        "import server.__main__, server.cli",
        "import speculation.training.options",  # of `echelon train`, and what the page of options is made of
    ],
)
def test_no_torch_where_nothing_is_computed(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program + _CHECK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
