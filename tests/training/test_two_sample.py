"""The classifier test passes an exact sampler and finds out a biased one."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from normae.errors import InputError
from normae.training.config import ClassifierSettings
from normae.training.two_sample import _parts, classifier_test

SMALL = ClassifierSettings(
    points=15_000, train=18_000, validation=3000, test=9000, hidden=(32, 32), batch=1024, max_epochs=12, patience=4
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(n: int, shift: float, seed: int) -> torch.Tensor:
    return torch.randn(n, 2, generator=stream(seed)) + torch.tensor([shift, 0.0])


def test_the_defaults_are_the_papers() -> None:
    paper = ClassifierSettings((64, 64, 64), 1e-3, 2048, 200, 20, 250_000, 300_000, 50_000, 150_000)
    assert ClassifierSettings() == paper


def test_identical_distributions_cannot_be_told_apart() -> None:
    result = classifier_test(normal(15_000, 0, 1), normal(15_000, 0, 2), SMALL, generator=stream())
    assert abs(result.auc.value - 0.5) < 3 * result.auc.error
    assert min(result.losses.validation) == pytest.approx(math.log(2), abs=2e-3)


@pytest.mark.parametrize("shift", [0.3, 1.0])
def test_a_shift_is_found_as_well_as_can_be(shift: float) -> None:
    result = classifier_test(normal(15_000, 0, 3), normal(15_000, shift, 4), SMALL, generator=stream())
    assert abs(result.auc.value - norm.cdf(shift / math.sqrt(2))) < 3 * result.auc.error + 0.003


def test_early_stopping_keeps_the_best() -> None:
    settings = ClassifierSettings((64, 64), 1e-2, 64, 100, 3, 600, 600, 300, 300)
    result = classifier_test(normal(600, 0, 5), normal(600, 0.5, 6), settings, generator=stream())
    best = int(np.argmin(result.losses.validation)) + 1
    assert len(result.losses.train) == len(result.losses.validation) == best + 3


def test_the_same_generator_gives_the_same_numbers_and_the_global_one_is_untouched() -> None:
    before = torch.get_rng_state()
    runs = [
        classifier_test(
            normal(3000, 0, 7).numpy(), normal(3000, 0.2, 8).double().numpy(), SMALL, generator=stream(seed)
        )
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].auc != runs[2].auc
    assert torch.equal(before, torch.get_rng_state())


def test_an_array_may_be_read_only() -> None:
    true, model = normal(600, 0, 1).numpy(), normal(600, 0, 2).numpy()
    true.setflags(write=False)
    settings = ClassifierSettings(points=600, train=600, validation=300, test=300, max_epochs=1)
    assert len(classifier_test(true, model, settings, generator=stream()).losses.train) == 1


def test_it_trains_under_no_grad_too() -> None:
    with torch.no_grad():
        result = classifier_test(normal(3000, 0, 9), normal(3000, 2.0, 10), SMALL, generator=stream())
    assert result.auc.value > 0.9


@pytest.mark.parametrize(("true", "model", "sizes"), [(15_000, 20_000, (18, 3, 9)), (5000, 90_000, (6, 1, 3))])
def test_parts_are_disjoint_and_scale(true: int, model: int, sizes: tuple[int, int, int]) -> None:
    x = torch.arange(true + model, dtype=torch.float32)[:, None]
    parts, *others = _parts(x[:true], x[true:], SMALL, stream(), "cpu", times=3)
    tested = torch.cat([part[2].x for part in (parts, *others)])
    assert len(tested.unique()) == len(tested) == 3000 * sizes[2]  # each event by one classifier at most
    assert tuple(len(part.x) for part in parts) == tuple(1000 * size for size in sizes)
    used = torch.cat([part.x for part in parts]).unique()
    assert len(used) == sum(len(part.x) for part in parts) == 2 * min(true, 15_000)
    assert all(torch.equal(part.label, (part.x[:, 0] >= true).float()) for part in parts)


def test_several_classifiers_of_few_events_have_a_smaller_error() -> None:
    """Each is tested on events of its own, so that errors add in quadrature, and samples scatter by as much."""
    found = [classifier_test(normal(300, 0, k), normal(300, 0, 100 + k), generator=stream(), times=3) for k in range(8)]
    one = classifier_test(normal(300, 0, 0), normal(300, 0, 100), generator=stream()).auc
    values, errors = np.transpose([result.auc for result in found])
    assert errors[0] == pytest.approx(one.error / 3**0.5, rel=0.1)
    assert abs(values.mean() - 0.5) < 3 * errors.mean() / 8**0.5
    assert 0.4 < values.std(ddof=1) / errors.mean() < 1.7


def test_bad_samples() -> None:
    good = normal(1000, 0, 11)
    with pytest.raises(InputError, match=r"model: expected events of shape \(N, \*event\), got \(1000,\)"):
        classifier_test(good, good[:, 0], SMALL, generator=stream())
    with pytest.raises(InputError, match=r"got 2 \(true\) and 1 \(model\)"):
        classifier_test(good, good[:, :1], SMALL, generator=stream())
    with pytest.raises(InputError, match="true: expected finite"):
        classifier_test(good / 0, good, SMALL, generator=stream())
    with pytest.raises(InputError, match="needs more events: 10 of each kind"):
        classifier_test(good[:10], good, SMALL, generator=stream())
    with pytest.raises(InputError, match="exceed two times 100"):
        ClassifierSettings(points=100)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    result = classifier_test(normal(15_000, 0, 3), normal(15_000, 1.0, 4), SMALL, generator=stream(), device="cuda")
    assert abs(result.auc.value - norm.cdf(1 / math.sqrt(2))) < 3 * result.auc.error + 0.003
