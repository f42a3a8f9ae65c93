"""What a release needs to agree on."""

import json
import re
import tomllib
from pathlib import Path

import normae

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["version"] == normae.__version__
    assert json.loads(read(".zenodo.json"))["version"] == normae.__version__
    assert re.search(r"^version: (.*)$", read("CITATION.cff"), re.M)[1] == normae.__version__
    assert re.search(r'set version = "(.*)"', read("conda/meta.yaml"))[1] == normae.__version__
    assert re.search(r"^## (\S+)", read("CHANGELOG.md"), re.M)[1] == normae.__version__


def test_conda_asks_for_what_pip_asks_for():
    names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    recipe = read("conda/meta.yaml").split("  run:")[1].split("test:")[0]
    asked = {tuple(line.strip("- ").split(" ")) for line in recipe.splitlines() if ">=" in line}
    needed = [
        re.match(r"([\w-]+)(>=.*)", one) for one in tomllib.loads(read("pyproject.toml"))["project"]["dependencies"]
    ]
    assert asked == {(names.get(one[1], one[1]), one[2]) for one in needed} | {("python", ">=3.11")}


def test_workflows_call_what_a_clone_has():
    """Every command of the workflows is a target of the Makefile or a script of .ci."""
    makefile = read("Makefile")
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for command in re.findall(r"- run: (\S+) ?(\S*)", workflow.read_text()):
            target = f"\n{command[1]}:" in makefile if command[0] == "make" else (ROOT / command[0]).is_file()
            assert target, f"{workflow.name}: {command}"
