"""`python -m workers.hosts [tcp://HOST:PORT] [OPTIONS]`: what `echelon join` runs."""

import sys

from workers.hosts.join import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
