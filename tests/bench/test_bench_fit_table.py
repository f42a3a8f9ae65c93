"""bench/fit_table.py runs at a small size, this tree against itself."""

import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_tree_against_itself(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("fit_table", ROOT / "bench" / "fit_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = tmp_path / "fit.json"
    given = ["--before", str(ROOT / "src"), "--rounds", "1", "--rows", "60", "-o", str(out)]
    monkeypatch.setattr(sys, "argv", ["fit_table.py", *given])
    monkeypatch.setattr(module, "TABLES", ("clusters",))
    module.main()
    found = json.loads(out.read_text())
    assert 0.2 < found["clusters"]["times as fast"]["value"] < 5  # a fit of so few rows is mostly what it imports
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["clusters"]
