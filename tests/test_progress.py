"""Progress: silent by default, shown by whoever is asked to, for as long as that lasts."""

import numpy as np
import torch

from normae.posterior.draw import in_pieces
from normae.progress import counted, plain, progress, shown_by
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
    with plain("scoring", 10, every=0.0) as tick:
        tick(5, "E+ 1")
        tick(5)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "scoring 5/10 E+ 1, 0 s left"
    assert second == "scoring 10/10, 0 s left"
    with shown_by(plain):
        list(counted("fast", range(3)))
    assert capsys.readouterr().err == "", "nothing is said of what is over at once"


def test_scoring_counts_events():
    told: list[int] = []
    with watched(lambda done, total: told.append(done)):
        in_pieces(lambda x: x.sum(1), np.ones((5, 2)), torch.device("cpu"), most=2)
    assert told == [2, 4, 5]
