"""bench/tables.py keeps its results and does not do them again."""

import importlib.util
import json
import sys
from pathlib import Path

import torch

SCRIPT = Path(__file__).parents[2] / "bench" / "tables.py"


def test_results_are_written_and_not_done_again(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = tmp_path / "results.json"
    arguments = ["--seeds", "3", "--tables", "moons", "--methods", "IsolationForest", "-o", str(results)]
    monkeypatch.setattr(sys, "argv", ["tables.py", *arguments])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    module.main()
    assert "3 moons IsolationForest" in capsys.readouterr().out
    (known,) = json.loads(results.read_text())
    assert 0.5 < known["auc"] < 1
    assert known["log_p"] is None
    results.write_text(json.dumps([known | {"auc": 0.25}]))
    module.main()
    again = capsys.readouterr().out
    assert "3 moons IsolationForest" not in again
    assert "| IsolationForest | 0.250 ± nan (1) |" in again
