"""Trained weights that ship with the package. Each is a run folder with a model card."""

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The models of the zoo."""
    return sorted(p.parent.name for p in FOLDER.glob("*/model.safetensors"))


def path(name: str) -> Path:
    """The run folder of a model of the zoo."""
    return FOLDER / name


def card(name: str) -> str:
    """The model card: data, settings, seeds, metrics, limits."""
    return (FOLDER / name / "card.md").read_text(encoding="utf-8")
