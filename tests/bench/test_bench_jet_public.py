"""bench/jet_public.py puts the public jets beside others."""

import importlib
import shutil
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_the_same_jets_are_no_error_apart(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCH)
    module = importlib.import_module("jet_public")
    shutil.copy(module.PUBLIC, tmp_path / "test.npz")
    monkeypatch.setattr(sys, "argv", ["jet_public.py", str(tmp_path)])
    module.main()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(lines) == 10
    assert all(public == own and apart == "+0.0" for _, public, own, apart in lines)
    assert 0.85 < float(lines[0][1].split()[0]) < 0.97
