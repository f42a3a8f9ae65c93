"""Scores of every model of the zoo at fixed events: `python tests/reference/zoo_scores.py` writes zoo_scores.json.

The file was written before the house was rebuilt; a change that moves a score has to say so by writing it again.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import normae
from normae import zoo

FILE = Path(__file__).with_name("zoo_scores.json")
EVENTS = 6
DRAWS = 4


def events(shape: tuple[int, ...]) -> np.ndarray:
    """Points of a plane, or images that sum to one with some forty filled pixels, from fixed random numbers."""
    random = np.random.RandomState(17)
    if len(shape) == 1:
        return random.normal(scale=1.5, size=(EVENTS, *shape)).astype(np.float32)
    images = np.zeros((EVENTS, *shape))
    for image in images:
        place = np.clip(random.normal(20, 4, size=(40, 2)), 0, 39).astype(int)
        np.add.at(image[0], (place[:, 0], place[:, 1]), random.exponential(size=40))
        image /= image.sum()
    return images.astype(np.float32)


def numbers(name: str) -> dict[str, Any]:
    """What a model says about the events."""
    if name == "jets-classifier":
        return {"logit": _list(normae.load_classifier(name).log_ratio(events((1, 40, 40))))}
    model = normae.load(name)
    x = events(model.event)
    found = {"energy": _list(model.energy(x)), "score": _list(model.score(x))}
    if len(model.event) == 1 or "components" in name:
        found["log_prob"] = _list(model.log_prob(x))
        if "bnae" in name:
            found["log_prob_draws"] = _list(model.log_prob_draws(x, n=DRAWS, seed=3))
    elif "bnae" in name or "bae" in name:
        found["score_draws"] = _list(model.score_draws(x, n=DRAWS, seed=3))
    return found


def _list(values: Any) -> Any:
    return np.asarray(values, dtype=np.float64).tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(json.dumps({name: numbers(name) for name in zoo.names()}, indent=1) + "\n")
