"""Scores of held-out background for the jet models of the zoo, with which `normae score` gives p-values.

`python bench/zoo_backgrounds.py JETS [MODELS]` writes `background.npz` of each, from the file `test` in JETS.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from normae import zoo
from normae.config import read
from normae.runs.folder import RunFolder
from normae.scoring.scorer import open_scorer

if __name__ == "__main__":
    os.environ["NORMAE_JETS"] = sys.argv[1]
    for name in sys.argv[2:] or zoo.names():
        run = RunFolder(zoo.path(name))
        config = read(run.config)
        if config.data.jets is None or config.classifier is not None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = RunFolder(Path(folder) / name)
            shutil.copytree(run.path, copy.path, ignore=shutil.ignore_patterns("background.npz"))
            scorer = open_scorer(copy.path)
            if scorer.notes:
                sys.exit(f"{name}: {scorer.notes[0]}")
            shutil.copyfile(copy.background, run.background)
        print(f"{name}: {len(scorer.background)} scores, {run.background.stat().st_size} bytes", flush=True)
