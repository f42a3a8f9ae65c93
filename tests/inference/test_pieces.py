"""Arrays in pieces: every event once and in order, whatever the array's type, and bounded memory."""

import numpy as np
import pytest
import torch

from normae.inference import pieces
from normae.inference.pieces import in_pieces

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 50])
def test_every_event_once_and_in_order(device, n, monkeypatch):
    monkeypatch.setattr(pieces, "CPU_PIECE", 8)
    monkeypatch.setattr(pieces, "BUFFER", 8 * 4 * 3)
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
