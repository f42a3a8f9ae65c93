"""A configuration that trains in about a second."""


def tiny(**changes: object) -> dict:
    """A run that trains in about a second."""
    content: dict = {
        "name": "tiny",
        "device": "cpu",
        "data": {"density": "two-gaussians", "train": 2000, "test": 2000},
        "network": {"hidden": [16, 16], "activation": "silu"},
        "pretraining": {"epochs": 2, "batch": 200, "latent_penalty": 1e-5},
        "training": {"epochs": 2, "batch": 200, "learning_rate": 1e-3, "average": 0.9, "schedule": "cosine"},
        "guard": {"log_every": 5, "checkpoint_every": 5},
        "sampling": {
            "buffer": 500,
            "latent": {"steps": 3, "step_size": 0.02},
            "feature": {"steps": 4, "step_size": 0.1, "bounds": [-4.5, 4.5], "adapt": 0.7},
        },
        "evaluation": {
            "grid": 40,
            "log_z_cells": 60,
            "long_factor": 2,
            "classifier": {
                "points": 1000, "train": 1200, "validation": 200, "test": 600, "hidden": [8], "max_epochs": 3,
            },
        },
    }  # fmt: skip
    for name, value in changes.items():
        *sections, last = name.split("__")
        inner = content
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return content
