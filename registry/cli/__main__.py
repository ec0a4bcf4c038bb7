"""`python -m registry.cli`, for where the installed command is not on the path."""

from registry.cli.app import main

main()
