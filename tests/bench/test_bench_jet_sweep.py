"""bench/jet_sweep.py trains, looks at validation jets of both classes, and compares pairs."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from normae import load_classifier
from normae.config import to_toml
from normae.errors import InputError
from normae.statistics import pearson
from tiny_jets import tiny_jets

SCRIPT = Path(__file__).parents[2] / "bench" / "jet_sweep.py"


def test_lines_and_pairs(tmp_path, capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location("jet_sweep", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for kind in ("qcd", "top"):
        (tmp_path / f"{kind}.toml").write_text(to_toml(tiny_jets(f"jets-best-{kind}-nae", "training.warmup=0")))
    arguments = [f"a={tmp_path}/qcd.toml,training.learning_rate=2e-5", f"b={tmp_path}/top.toml"]
    options = ["--every", "2", "--jets", "10", "--dual", "jets-classifier"]
    monkeypatch.setattr(sys, "argv", ["jet_sweep.py", str(tmp_path / "out"), *options, *arguments])
    module.main()
    printed = capsys.readouterr().out
    assert "a finished" in printed
    assert "a b: Pearson" in printed
    monkeypatch.setattr(module, "manifold", lambda run, jets: {"a": 1.0, "b": 2.0}[run.name] * 1e-6 * (len(jets) == 10))
    monkeypatch.setattr(sys, "argv", ["jet_sweep.py", str(tmp_path / "out"), *options, "--manifold"])
    module.main()
    with np.load(tmp_path / "out" / "a.npz") as a, np.load(tmp_path / "out" / "b.npz") as b:
        ratio = np.concatenate([a[kind] - b[kind] / 2 for kind in ("qcd", "top")]) / 1e-6
    images = module.validation_jets(tiny_jets("jets-best-qcd-nae"), 10)
    known = np.concatenate([load_classifier("jets-classifier").log_ratio(x.numpy()) for x in images.values()])
    assert f"Pearson {pearson(ratio, known)}" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "out" / "a.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 2, 4, 6]
    assert all(0 <= line["auc_averaged"] <= 1 for line in lines)
    for seed, change in ((0, 0.1), (1, -0.1)):
        looks = [{"negative_energy": k / 10, "positive_energy": 0.5, "latent_acceptance": 1.0, "auc": 0.7 + change}
                 for k in (9, 1 + 10 * change)]  # fmt: skip
        (tmp_path / f"long chains-{seed}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in looks))
    (tmp_path / "numbers.json").write_text('{"about": "chains"}')
    monkeypatch.setattr(sys, "argv", ["jet_sweep.py", str(tmp_path), "--table", str(tmp_path / "numbers.json")])
    module.main()
    assert json.loads((tmp_path / "numbers.json").read_text())["rows"] == [
        [
            "long chains",
            "2",
            *({"value": value, "error": error} for value, error in ((0.2, 0.2828), (1, 0), (0.7, 0.1414))),
        ]
    ]
    with pytest.raises(InputError, match="a: energies of 20 jets, expected 16; use its --jets"):
        module.dual(tmp_path / "out", "jets-classifier", 8, False)
    with np.load(tmp_path / "out" / "b.npz") as kept:
        assert kept["qcd"].shape == kept["top"].shape == (10,)
