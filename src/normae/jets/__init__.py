"""Jets: files in, images and observables out, and a generator of new ones.

`read` gives `Jets`; `images` makes float32 pictures with shape (N, 1, 40, 40) of them, `observables` a dictionary of
eta, phi, mass, tau1, tau2, tau3, from `Jets` or from pictures.
"""

from typing import Any

from normae.jets.container import Jets, concatenate, from_counts, from_lists
from normae.jets.imaging import (
    THRESHOLD,
    SparseImages,
    images,
    jets_of_images,
    observables,
    pixel_centres,
    pixel_index,
    pixel_to_plane,
    sparse_images,
)
from normae.jets.pipeline import (
    check_output,
    check_suffix,
    convert,
    convert_images,
    file_observables,
    summary,
    write,
    write_columns,
    write_images,
)
from normae.jets.reader import PUBLIC, chunks, info, is_jets, public, read, read_images

_LAZY = dict.fromkeys(("Job", "Process", "check_run", "generate"), "generator") | {"save_figures": "gallery"}

__all__ = [
    "PUBLIC", "THRESHOLD", "Jets", "Job", "Process", "SparseImages", "check_output", "check_run", "check_suffix",
    "chunks", "concatenate", "convert", "convert_images", "file_observables", "from_counts", "from_lists", "generate",
    "images", "info", "is_jets", "jets_of_images", "observables", "pixel_centres", "pixel_index", "pixel_to_plane",
    "public", "read", "read_images", "save_figures", "sparse_images", "summary", "write", "write_columns",
    "write_images",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Numba, Pythia and matplotlib are imported where they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
