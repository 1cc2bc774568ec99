"""`python -m server.cli`: the `echelon` command."""

from server.cli.main import main

main()
