"""What provenance.json says about the machine and the source: the same for every kind of training."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Versions, commit, device and threads."""
    return {
        "normae": _version(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
    }


def _version() -> str:
    from normae import __version__

    return __version__


def _commit() -> str | None:
    """The commit of the source tree; NORMAE_COMMIT names it where a tree was copied without its history."""
    if "NORMAE_COMMIT" in os.environ:
        return os.environ["NORMAE_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
