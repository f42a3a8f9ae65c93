"""`lowest.txt` has the lowest version of every dependency that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_lowest_versions_are_those_of_the_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("blosc", "cluster", "export", "pyod", "root", "search", "trigger")  # `make lowest` installs these
    bounds = [
        *project["dependencies"],
        *(bound for extra in extras for bound in project["optional-dependencies"][extra]),
    ]
    lines = (ROOT / "lowest.txt").read_text().splitlines()
    lowest = dict(line.split("==") for line in lines if not line.startswith("#"))
    for bound in (bound for bound in bounds if ">=" in bound):
        name, version = re.fullmatch(r"([\w-]+)>=([\d.]+)", bound).groups()
        assert (lowest[name] + ".").startswith(version + "."), bound
