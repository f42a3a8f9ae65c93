"""The exceptions that a user can meet, each of which says what to do next."""

import importlib


class InputError(ValueError):
    """What the user gave cannot be used. One sentence; the command line shows it and exits with code 2."""


class DataChanged(InputError):
    """A finished run finds other data than it was trained on."""


class LogZUnknown(InputError):
    """log p was asked of a model whose partition function is not known."""


class Interrupted(RuntimeError):
    """The user stopped the work; what was done is safe."""


class TrainingDiverged(RuntimeError):
    """A training ran away and the allowed number of rollbacks is used up."""


class ClusterFailed(RuntimeError):
    """The workers of a cluster, or its scheduler, failed for a reason that is not the input's; what is done is kept."""


class LogZDisagreement(RuntimeError):
    """The bounds on log Z disagree, or too few chains carry them: log Z is not known. `result` holds the numbers."""

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


def refuse(wrong: object, sentence: str) -> None:
    """Say what cannot be used, where something is wrong with it.

    >>> from normae.errors import refuse
    >>> refuse(2 < 1, "expected at least one")
    """
    if wrong:
        raise InputError(sentence)


def require_that(holds: bool, name: str, expected: str, got: object) -> None:
    """One sentence where a setting does not hold what it should."""
    refuse(not holds, f"{name}: expected {expected}, got {got}")


def require(extra: str, *packages: str) -> None:
    """One sentence where a package of an extra is not installed."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            missing = error.name or package
            raise InputError(f"{missing} is not installed; `pip install 'normae[{extra}]'` brings it") from None
