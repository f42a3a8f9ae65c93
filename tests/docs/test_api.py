"""Every public name is on a page of the interface: of the source here, and of the built site in the slow test."""

import importlib
import re
import subprocess
import sys
import zlib

import pytest

import normae
from pages import DOCS, ROOT

PACKAGES = ROOT / "src" / "normae"
ROOMS = sorted(p.parent.name for p in PACKAGES.glob("*/__init__.py") if "__all__" in p.read_text(encoding="utf-8"))


def directives(page):
    """What autodoc is told to document on a page."""
    return re.findall(r"\.\. (?:auto|py:)(\w+):: ([\w.]+)", page.read_text(encoding="utf-8"))


def test_names_of_the_package_are_there():
    said = {name for _, name in directives(DOCS / "api.md")}
    assert {f"normae.{name}" for name in normae.__all__} <= said


@pytest.mark.parametrize("room", ROOMS)
def test_names_of_a_room_are_there(room):
    """`automodule` with `:members:` takes `__all__`; what it leaves out is in the package's own list or beside it."""
    page = DOCS / "api" / f"{room}.md"
    assert page.is_file(), f"docs/api/{room}.md is missing: normae.{room} has public names"
    text = page.read_text(encoding="utf-8")
    names = set(importlib.import_module(f"normae.{room}").__all__)
    alone = {name.rpartition(".")[2] for kind, name in directives(page) if kind != "module"}
    if ("module", f"normae.{room}") not in directives(page):
        assert names <= alone | set(normae.__all__)
        return
    assert ":members:" in text
    left_out = set(",".join(re.findall(r":exclude-members: (.*)", text)).replace(" ", "").split(",")) - {""}
    lazy = {name for name in names if name not in vars(importlib.import_module(f"normae.{room}"))}
    assert left_out <= set(normae.__all__)
    assert lazy <= alone


def test_documented_names_exist():
    for page in (DOCS / "api.md", *(DOCS / "api").glob("*.md")):
        for kind, name in directives(page):
            if kind == "module":
                importlib.import_module(name)
            else:
                place, _, last = name.rpartition(".")
                assert hasattr(importlib.import_module(place), last), f"{page.name}: {name}"


@pytest.mark.slow
def test_the_site_builds_and_has_every_name(tmp_path):
    """Without running the examples, which `make docs` does; warnings are errors."""
    pytest.importorskip("sphinx_gallery")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-D", "plot_gallery=0", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, str(DOCS), str(tmp_path / "site")], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    inventory = (tmp_path / "site" / "objects.inv").read_bytes().split(b"\n", 4)[4]
    found = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = {f"normae.{name}" for name in normae.__all__}
    for room in ROOMS:
        names = set(importlib.import_module(f"normae.{room}").__all__) - set(normae.__all__)
        public |= {f"normae.{room}.{name}" for name in names}
    assert public - found == set()
