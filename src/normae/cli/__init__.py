"""The command line: parse, one library call, write, exit code."""

import sys

from normae.cli.app import app
from normae.errors import InputError, TrainingDiverged


def main() -> None:
    """Run the command. Bad input is one sentence and exit code 2; a training that diverged is exit code 1."""
    try:
        app()
    except InputError as error:
        print(f"normae: {error}", file=sys.stderr)
        sys.exit(2)
    except TrainingDiverged as error:
        print(f"normae: the training diverged: {error}", file=sys.stderr)
        sys.exit(1)
