"""The command line: parse, one library call, write, exit code."""

import sys

from normae.errors import ClusterFailed, InputError, Interrupted, LogZDisagreement, TrainingDiverged


def main() -> None:
    """Run the command.

    Bad input is one sentence and exit code 2; a training that diverged, bounds on log Z that disagree or a cluster that
    failed exit code 1; an interruption exit code 130.
    """
    try:
        from normae.cli.app import app  # here, so that an interruption of the import is one sentence too
        from normae.cli.console import Bars
        from normae.progress import shown_by

        with shown_by(Bars()):
            app()
    except (InputError, OSError, MemoryError) as error:
        _say(str(error) or type(error).__name__, 2)
    except TrainingDiverged as error:
        _say(f"the training diverged: {error}", 1)
    except ClusterFailed as error:
        _say(f"{error}; parts that are done are kept, and the same command does the rest", 1)
    except LogZDisagreement as error:
        _say(str(error), 1)
    except Interrupted as error:
        _say(str(error), 130)
    except KeyboardInterrupt:
        _say("interrupted", 130)
    except SystemExit as error:
        if error.code == 130:
            _say("interrupted", 130)
        raise


def _say(sentence: str, code: int) -> None:
    print(f"normae: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)
