"""The page of licences names every dependency, in the row of its extra."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_dependency_is_named():
    page = (ROOT / "docs" / "licences.md").read_text().lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, second = page.split("## what an extra brings")
    for needed in project["dependencies"]:
        assert re.search(rf"\b{re.match(r'[a-z0-9-]+', needed)[0]}\b", first), needed
    for extra, packages in project["optional-dependencies"].items():
        assert f"| `{extra}` |" in second
        for needed in packages:
            name = re.match(r"[a-z0-9-]+", needed.lower())[0]
            assert name == "normae" or re.search(rf"\b{name}\b", second), needed


def test_no_part_of_the_package_imports_what_is_gpl_but_the_generator():
    for path in (ROOT / "src").rglob("*.py"):
        found = re.findall(r"^\s*(?:import|from) (fastjet|pythia8mc)|import_module\(\"(\w+)\"", path.read_text(), re.M)
        names = {name for pair in found for name in pair}
        assert "fastjet" not in names, path
        assert "pythia8mc" not in names or path.name == "generator.py", path
