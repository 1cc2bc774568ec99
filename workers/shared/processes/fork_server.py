"""`python -m workers.shared.processes.fork_server LINK MODULES... ROOM`: does once what many processes begin with.

What a stage imports takes seconds of a core. Here that is done once: a child that is asked for begins with it, as a
copy, and is then what `python -m` with its arguments would have been. It is not this process's child but the
launcher's, which waits for it, and with which it dies. Linux only, without threads and without an open CUDA device.

Of `module:function` the function is called, too, without arguments.

LINK is the descriptor of a socket. `READY` comes out of it after the imports; then a message in is a child's arguments,
joined by zeros, and a message out its pid. ROOM is room in the command line, for those of the children.
"""

import ctypes
import gc
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from workers.shared.lifecycle import die_with_parent

READY = b"ready"
MOST_BYTES = 1024  # bytes of a child's arguments


def main() -> None:
    """Returns in a child that has run to its end; this process itself ends with its link."""
    die_with_parent()
    link = socket.socket(fileno=int(sys.argv[1]))
    show(sys.orig_argv[:-1])
    gc.disable()  # a seventh of the time of the imports
    for name in sys.argv[2:-1]:
        module, _, function = name.partition(":")
        imported = import_module(module)
        if function:
            getattr(imported, function)()
    # A collection writes to all it looks at, and what is written to is shared no longer. None here, either: it would
    # free nothing that can be seen, and take a tenth of the time of the imports.
    gc.freeze()
    gc.enable()
    link.send(READY)
    while request := link.recv(MOST_BYTES):
        if len(os.listdir("/proc/self/task")) > 1:
            link.close()  # whoever asked need not wait for the thread
            sys.exit("something that was imported has started a thread: not to be copied")
        arguments = request.decode().split("\0")
        if pid := fork([sys.executable, "-m", *arguments]):
            link.send(str(pid).encode())
            continue
        link.close()
        die_with_parent()  # another one than before
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return


def fork(line: Sequence[str]) -> int:
    """Pid of a copy that is a child of this process's parent, a subreaper; 0 in the copy, once it is that.

    Its command line is `line`, before anybody hears of it.
    """
    told, tell = os.pipe()
    held, hold = os.pipe()
    between = os.fork()
    if not between:
        show(line)
        if pid := os.fork():
            os.write(tell, str(pid).encode())
            os._exit(0)  # leaves its child to the subreaper
        for descriptor in (told, tell, hold):
            os.close(descriptor)
        os.read(held, 1)
        os.close(held)
        os.setpgid(0, 0)
        return 0
    os.close(tell)
    os.close(held)
    pid = int(os.read(told, 32))
    os.waitpid(between, 0)
    os.close(told)
    os.close(hold)
    return pid


def show(line: Sequence[str]) -> None:
    """Makes `line` this process's command line, as far as there is room in the memory where the system reads it."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()  # from the third on
    start, end = int(fields[45]), int(fields[46])
    shown = b"".join(os.fsencode(argument) + b"\0" for argument in line)[: end - start]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
