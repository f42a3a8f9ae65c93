"""Every table of numbers in README and docs is made from docs/numbers, and says by which command."""

import json
import re

import make
import pytest

from pages import ROOT

USER_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"^\**[-−+]?\d+(\.\d+)?( ± [\d.]+)?( %)?(, worst.*)?\**$")


@pytest.mark.parametrize("page", make.pages(), ids=lambda path: path.name)
def test_tables_are_those_of_the_numbers(page):
    text = page.read_text()
    assert make.page(text) == text, "run `python docs/numbers/make.py`"


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda path: path.name)
def test_no_table_of_numbers_is_written_by_hand(page):
    rest = make.BLOCK.sub("", page.read_text())
    for table in re.findall(r"(?:^\|.*\n)+", rest, re.M):
        lines = table.splitlines()
        cells = [cell.strip() for line in lines[2:] for cell in line.strip("|").split("|")]
        measured = [cell for cell in cells if NUMBER.match(cell) and "." in cell]
        assert not measured, f"{lines[0]}: {measured[:3]} stand in no file of docs/numbers"


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "numbers").glob("*.json")), ids=lambda path: path.stem)
def test_numbers_say_where_they_come_from(file):
    content = make.numbers(file.stem)
    assert content["commands"]
    assert all(re.match(r"(normae|python) ", command) for command in content["commands"])
    assert content["seeds"]
    assert content["chosen_on"]
    shown = [page for page in make.pages() if f"<!-- numbers: {file.stem} -->" in page.read_text()]
    assert shown, "no page shows it"


def test_a_wrong_number_is_found_out(tmp_path, monkeypatch):
    """A page that says something else than its file, and a file without a command."""
    content = make.numbers("jets-dual")
    text = f"<!-- numbers: jets-dual -->\n{make.table('jets-dual')}\n<!-- end of numbers -->\n"
    assert make.page(text) == text
    assert make.page(text.replace("0.882", "0.982")) == text
    del content["commands"]
    (tmp_path / "bad.json").write_text(json.dumps(content))
    monkeypatch.setattr(make, "HERE", tmp_path)
    with pytest.raises(SystemExit, match=r"bad.json: lacks commands"):
        make.table("bad")


def test_cells():
    assert make.cell({"value": 0.5053, "error": 0.0012}) == "0.505 ± 0.001"
    assert make.cell({"value": 0.5053, "error": 0.00096}) == "0.505 ± 0.001"
    assert make.cell({"seeds": [1.0, 2.0, 4.0], "worst": "max"}) == "2.3 ± 1.5, worst 4"
    assert make.cell({"seeds": [0.855, 0.878, 0.785], "worst": "min"}) == "0.84 ± 0.05, worst 0.785"
    assert make.cell(None) == ""
