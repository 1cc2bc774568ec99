"""`python -m workers.shared.processes.tied MODULE ARGUMENTS...`: somebody else's program, ended with its parent."""

import runpy
import sys

from workers.shared.lifecycle import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
