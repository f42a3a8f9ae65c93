"""Progress: silent by default, shown by whoever is asked to, for as long as that lasts."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch

from normae.posterior.draw import in_pieces
from normae.progress import Tick, counted, ignore, plain, progress, shown_by
from normae.runs.session import train
from watched import watched


def test_silent_by_default(capsys):
    assert list(counted("things", [1, 2])) == [1, 2]
    with progress("things", 2) as tick:
        tick(2, "done")
    assert capsys.readouterr() == ("", "")


def test_a_display_is_told_for_as_long_as_it_lasts():
    told: list[tuple[int, int]] = []
    with watched(lambda done, total: told.append((done, total))):
        list(counted("things", "abc"))
    list(counted("things", "abc"))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_plain_lines_have_the_time_left(capsys):
    with plain(every=0.0, first=0.0)("scoring", 10) as tick:
        tick(5, "E+ 1")
        tick(5)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "scoring 5/10 E+ 1, 0 s left"
    assert second == "scoring 10/10, 0 s left"
    with shown_by(plain()):
        list(counted("fast", range(3)))
    assert capsys.readouterr().err == "", "nothing is said of what is over at once"


def test_plain_lines_come_for_all_that_lasts_two_seconds(capsys, monkeypatch):
    """One phase that does, several that do so together, and then no more than one every five seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("normae.progress.time", SimpleNamespace(monotonic=lambda: clock.now))

    def said(phase: str, seconds: float, steps: int) -> list[str]:
        with progress(phase, steps) as tick:
            for _ in range(steps):
                clock.now += seconds / steps
                tick()
        return capsys.readouterr().err.splitlines()

    with shown_by(plain()):
        assert said("base", 1.5, 3) == []
        assert said("contrast", 1.5, 3) == ["contrast 1/3, 1 s left"]
        assert said("training", 3.0, 3) == ["training 1/3, 2 s left"]
        assert said("annealing", 12.0, 12) == [f"annealing {k}/12, {12 - k} s left" for k in (1, 6, 11)]


def test_scoring_counts_events():
    told: list[int] = []
    with watched(lambda done, total: told.append(done)):
        in_pieces(lambda x: x.sum(1), np.ones((5, 2)), torch.device("cpu"), most=2)
    assert told == [2, 4, 5]


def test_a_training_shows_one_phase_after_the_other(make_run, tmp_path):
    shown: list[str] = []

    @contextmanager
    def display(what: str, total: int) -> Iterator[Tick]:
        shown.append(f"{what} of {total}")
        yield ignore
        shown.append(f"{what} is over")

    with shown_by(display):
        train(make_run(training__epochs=1), tmp_path / "run")
    first, second = ([f"{phase} of {n}", f"{phase} is over"] for phase, n in (("pretraining", 20), ("training", 10)))
    assert shown[:4] == [*first, *second]
