"""Trained weights that ship with the package. Each is a run folder with a model card."""

import json
from collections.abc import Sequence
from pathlib import Path

from normae.presets import nearest

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The models of the zoo.

    >>> from normae import zoo
    >>> "toy-2gauss-nae" in zoo.names()
    True
    """
    return sorted(p.parent.name for p in FOLDER.glob("*/model.safetensors"))


def path(name: str) -> Path:
    """The run folder of a model of the zoo."""
    return FOLDER / name


def unknown(name: str) -> str:
    """What to say of a name that is neither a run folder nor a model of the zoo: the models like it, or all."""
    others = f"its models are {', '.join(names())}"
    return f"{name}: neither a run folder nor a model of the zoo{nearest(name, names(), 'models', others)}"


def card(name: str) -> str:
    """The model card: data, settings, seeds, metrics, limits."""
    return (FOLDER / name / "card.md").read_text(encoding="utf-8")


def mixture_constants(digests: Sequence[str]) -> list[float] | None:
    """Those of a mixture of models of the zoo, by the SHA-256 of their weights; None where they are not known.

    They are from the validation events of the training, which are not part of the package.
    """
    file = FOLDER / "mixtures.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return next((one["constants"] for one in known.values() if one["sha256"] == list(digests)), None)
