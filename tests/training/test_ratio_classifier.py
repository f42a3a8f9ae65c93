"""The supervised reference gives the likelihood ratio of two Gaussians, whatever the composition of the sample."""

import numpy as np
import pytest
import torch

from normae.errors import InputError
from normae.statistics import fit_line
from normae.statistics.calibration import calibration
from normae.training.two_sample import RatioSettings, train_ratio_classifier

SMALL = RatioSettings(hidden=(32, 32), learning_rate=3e-3, batch=512, max_epochs=12, patience=4)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(n_a: int, n_b: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """N(-0.5, 1) (label 0) and N(0.5, 1) in the first of two coordinates, whose true log r is that coordinate."""
    labels = np.repeat([0, 1], (n_a, n_b))
    x = torch.randn(n_a + n_b, 2, generator=stream(seed))
    x[:, 0] += torch.from_numpy(labels) - 0.5
    return x, labels


@pytest.mark.parametrize(("n_a", "n_b"), [(8000, 8000), (12_000, 4000)])
def test_it_learns_the_ratio(n_a: int, n_b: int) -> None:
    x, labels = sample(n_a, n_b, 1)
    classifier = train_ratio_classifier(x, labels, SMALL, generator=stream())
    test, test_labels = sample(5000, 5000, 2)
    found = classifier(test)
    assert found.shape == (10_000,)
    assert found.dtype == np.float64
    line = fit_line(test[:, 0].numpy(), found, test_labels, 20, generator=stream())
    assert line.slope.value == pytest.approx(1.0, abs=0.1)
    assert line.constant.value == pytest.approx(0.0, abs=0.1)
    error = calibration(found, test_labels, 0, n_bootstrap=20).error
    assert error.measured.value < 0.03


def test_small_and_constant_features_are_no_obstacle() -> None:
    x, labels = sample(4000, 4000, 3)
    pixels = torch.cat([1e-4 * x, torch.zeros(len(x), 1)], dim=1).reshape(-1, 1, 3)
    found = train_ratio_classifier(pixels, torch.from_numpy(labels), SMALL, generator=stream())(pixels.numpy())
    assert np.corrcoef(found, x[:, 0])[0, 1] > 0.98


def test_the_best_validation_loss_is_restored() -> None:
    x, labels = sample(300, 300, 4)
    hungry = RatioSettings(hidden=(64, 64), learning_rate=2e-2, batch=64, max_epochs=40, patience=5)
    classifier = train_ratio_classifier(x, labels, hungry, generator=stream())
    best = int(np.argmin(classifier.losses.validation)) + 1
    assert len(classifier.losses.validation) == len(classifier.losses.train) == best + 5
    again = train_ratio_classifier(
        x,
        labels,
        RatioSettings(hidden=(64, 64), learning_rate=2e-2, batch=64, max_epochs=best, patience=99),
        generator=stream(),
    )
    assert (classifier(x) == again(x)).all()


def test_the_global_generator_is_untouched_and_no_grad_is_no_obstacle() -> None:
    before = torch.get_rng_state()
    x, labels = sample(300, 300, 5)
    with torch.no_grad():
        runs = [train_ratio_classifier(x, labels, SMALL, generator=stream(seed))(x) for seed in (1, 1, 2)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()
    assert torch.equal(before, torch.get_rng_state())


def test_bad_input() -> None:
    x, labels = sample(50, 50, 6)
    with pytest.raises(InputError, match="got a sample without labels"):
        train_ratio_classifier(x, None, SMALL, generator=stream())
    with pytest.raises(InputError, match="only label 0 in 100 events"):
        train_ratio_classifier(x, 0 * labels, SMALL, generator=stream())
    with pytest.raises(InputError, match="one label per event, 100, got 99"):
        train_ratio_classifier(x, labels[1:], SMALL, generator=stream())
    with pytest.raises(InputError, match="4 leave 1 for validation"):
        train_ratio_classifier(x[48:52], labels[48:52], SMALL, generator=stream())
    with pytest.raises(InputError, match="validation share"):
        RatioSettings(validation_share=1.0)
    classifier = train_ratio_classifier(x, labels, RatioSettings((4,), max_epochs=1), generator=stream())
    with pytest.raises(InputError, match="events of size 2, got 1"):
        classifier(x[:, :1])
