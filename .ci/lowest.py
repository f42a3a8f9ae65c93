"""Constraints with the lowest version of every dependency that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
lists = [project["dependencies"], *project["optional-dependencies"].values()]
lowest: dict[str, str] = {}
for needed in (one for part in lists for one in part):
    found = re.match(r"([A-Za-z0-9_-]+)>=([\w.]+)", needed)
    if found:
        lowest[found[1]] = found[2]
print("\n".join(f"{name}=={version}" for name, version in sorted(lowest.items())))
