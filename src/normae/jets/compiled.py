"""Numba, asked for only where a kernel is needed."""

from collections.abc import Callable
from typing import TypeVar

from normae.errors import InputError

F = TypeVar("F", bound=Callable[..., object])


def missing(package: str) -> InputError:
    """What to say where an optional package is not installed."""
    return InputError(f"this needs {package}, which is not installed: pip install 'normae[jets]'")


def compiled(function: F) -> F:
    """`function` compiled by numba: cached on disk, without the interpreter's lock, 1 / 0 = inf."""
    try:
        import numba
    except ImportError:
        raise missing("numba") from None
    kernel: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return kernel
