"""Rows: the rule that joins draws. Arrays in pieces: every event once and in order, and bounded memory."""

import numpy as np
import pytest
import torch

from normae.errors import LogZUnknown
from normae.posterior import draw
from normae.posterior.draw import Rows, in_pieces

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


SCORES, LOG_Z = np.array([[1.0, 2.0, 5.0], [3.0, 1.0, 5.0]]), np.array([0.5, 1.5])


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_the_mean_of_log_p_or_the_log_of_the_mean_of_p(kind):
    plain, mixture = (Rows(kind(SCORES), LOG_Z, rule) for rule in (False, True))
    log_p = -SCORES - LOG_Z[:, None]
    assert type(plain.score()) is type(kind(SCORES))
    assert np.allclose(plain.log_prob_draws(), log_p)
    assert np.allclose(plain.score(), SCORES.mean(0))
    assert np.allclose(plain.log_prob(), log_p.mean(0))
    assert np.allclose(mixture.log_prob(), np.log(np.exp(log_p).mean(0)))
    assert np.allclose(mixture.score(), -np.log(np.exp(log_p).mean(0)) - LOG_Z.mean())
    assert np.allclose(plain.spread(), SCORES.std(0, ddof=1))


def test_one_draw_has_no_spread_and_unknown_log_z_is_a_named_error():
    one = Rows(SCORES[:1], unknown="nobody knows")
    assert one.spread() is None
    assert np.array_equal(one.score(), SCORES[0])
    with pytest.raises(LogZUnknown, match="nobody knows"):
        one.log_prob()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 50])
def test_every_event_once_and_in_order(device, n, monkeypatch):
    monkeypatch.setattr(draw, "CPU_PIECE", 8)
    monkeypatch.setattr(draw, "BUFFER", 8 * 4 * 3)
    sizes = []

    def function(x):
        assert x.dtype == torch.float32
        assert x.device.type == device
        sizes.append(len(x))
        return x.sum(1)

    events = np.arange(3 * n, dtype=np.float64).reshape(n, 3)
    events.flags.writeable = False
    values, finite = in_pieces(function, events, torch.device(device))
    assert np.array_equal(values.numpy(), events.sum(1))
    assert finite.all()
    assert len(finite) == n
    assert max(sizes) <= 8
    assert sum(sizes) == n


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_values_and_events_that_are_not_finite(device):
    events = np.ones((10, 2, 2), dtype=np.int64).astype(np.float32)
    events[4, 1, 0], events[7, 0, 0] = np.nan, np.inf
    values, finite = in_pieces(
        lambda x: torch.stack([x[:, 0, 1], 2 * x[:, 0, 1]]), events, torch.device(device), most=3
    )
    assert values.tolist() == [[1.0] * 10, [2.0] * 10]
    assert np.flatnonzero(~finite.numpy()).tolist() == [4, 7]
