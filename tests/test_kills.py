"""Kills at fsync, rename and link, in every command that writes: nothing lost, nothing half, the same bytes after.

`bench/soak.py --kills N` does it, in children of a process of its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "soak.py"


def kills(count: int, *words: str) -> int:
    call = [sys.executable, str(SCRIPT), "--kills", str(count), *words]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return int(re.match(r"(\d+) kills, nothing lost", done.stdout).group(1))


def test_kills():
    assert kills(16, "--only", "train", "ensemble", "score", "sample", "convert", "onnx") == 16


@pytest.mark.slow
def test_kills_of_every_command():
    assert kills(200) == 200
