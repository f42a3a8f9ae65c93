"""The command line in this process."""

import sys

from normae.cli import main


def command(*arguments: object) -> int:
    """The exit code of `normae`, run in this process."""
    before, sys.argv = sys.argv, ["normae", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0
