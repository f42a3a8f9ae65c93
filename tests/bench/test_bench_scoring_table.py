"""bench/scoring_table.py runs at a small size, and its numbers are of the right kind."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "scoring_table.py"


def numbers(capsys, monkeypatch, *arguments: str) -> dict:
    spec = importlib.util.spec_from_file_location("scoring_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["scoring_table.py", *arguments])
    module.main()
    out = capsys.readouterr().out
    return json.loads(out[out.index("{\n") :])


def test_memory_of_a_small_table(capsys, monkeypatch):
    found = numbers(capsys, monkeypatch, "--rows", "20000", "--only", "memory")
    assert found["columns"] == 20
    assert 0 < found["memory above the imported package, MiB"] < 1024


def test_against_pyod(capsys, monkeypatch):
    pytest.importorskip("pyod")
    given = ("--rows", "20000", "--pyod-rows", "5000", "--rounds", "2", "--only", "pyod")
    found = numbers(capsys, monkeypatch, *given)
    assert "ours against PyOD, times as fast" in found


@pytest.mark.slow
def test_workers(capsys, monkeypatch):
    pytest.importorskip("distributed")
    found = numbers(capsys, monkeypatch, "--rows", "600000", "--rounds", "2", "--only", "workers")
    assert len(found["seconds of the rounds"]["2"]) == 2
