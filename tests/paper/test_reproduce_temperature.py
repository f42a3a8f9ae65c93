"""Estimates of T beside the one at which the dual test has m = 1."""

from types import SimpleNamespace

import numpy as np
import pytest

from normae.figures.ratios import ComparedTemperatures
from normae.paper import jets
from normae.paper.jets import TOYS, compare_temperatures, temperature_rows
from normae.runs.folder import RunFolder
from normae.statistics import Estimate


def test_the_wanted_temperature_is_the_model_s_over_the_slope(tmp_path, monkeypatch):
    """Too steep a line asks for a lower T, and its relative error is the slope's; a toy's T is as learned."""
    found = SimpleNamespace(model=6e-7, estimates={"a": Estimate(3e-7, 1e-8)})
    monkeypatch.setattr(jets, "estimate_temperatures", lambda *_, **__: found)
    pair = (RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b"), Estimate(1.5, 0.03))
    rows = compare_temperatures({"NAE": pair}, None, "cpu")
    assert [row.name for row in rows[:2]] == ["NAE, QCD jets", "NAE, top jets"]
    for row in rows[:2]:
        assert row.wanted == pytest.approx((4e-7, 8e-9))
    assert [row.wanted for row in rows[2:]] == [(6e-7, 0.0)] * len(TOYS)


def test_the_table_says_what_is_not_known():
    a, b = Estimate(5e-7, 5e-8), Estimate(1e-6, np.inf)
    rows = [
        ComparedTemperatures("one", 6e-7, Estimate(5e-7, 1e-8), {"a": a, "b": b}),
        ComparedTemperatures("two", 0.5, Estimate(0.5, 0.0), {"a": Estimate(np.nan, np.inf)}),
    ]
    assert temperature_rows(rows) == [
        ["model", "its T", "T at m = 1", "a / T(m = 1)", "b / T(m = 1)"],
        ["one", "6e-07", "(5.0 ± 0.1)e-7", "1.0 ± 0.1", "2 (error not known)"],
        ["two", "0.5", "0.5", "—", "—"],
    ]
