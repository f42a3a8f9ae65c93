"""The base of a table's energy: two densities, a row judged by the others, and what a model does with it."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import normae
from normae.errors import InputError
from normae.inference import AISConfig, ais_log_z, grid_log_z, proposed_log_z
from normae.inference.ais import Proposed
from normae.inference.generation import drawn
from normae.inference.log_z import Based, grid_draws
from normae.networks import NetworkConfig, build_autoencoder
from normae.networks.base import SCALE, Base, BaseConfig, fit_base, read_base, unseen
from normae.networks.reconstruction import ReconstructionEnergy
from normae.statistics import auc
from normae.statistics.gaussians import FLOOR, Moments, fit_mixture
from normae.tensors import stream


def clusters(n: int, seed: int = 0) -> torch.Tensor:
    """Four round groups in two columns, five widths apart."""
    generator = stream(seed, "clusters")
    centres = torch.tensor([[-2.5, -2.5], [-2.5, 2.5], [2.5, -2.5], [2.5, 2.5]])
    return centres[torch.randint(4, (n,), generator=generator)] + 0.5 * torch.randn(n, 2, generator=generator)


def fitted(rows: torch.Tensor, **settings: int) -> Base:
    frame = torch.eye(rows.shape[1], dtype=torch.float64)
    return fit_base(rows, frame, BaseConfig(**settings), stream(0, "base"))


def leaned(base: Base, leaning: float) -> Base:
    """The same with another share of the kernels."""
    return Base(dict(base.named_buffers()) | {"leaning": torch.tensor(leaning)})


def grid(limit: float, cells: int) -> tuple[torch.Tensor, float]:
    axis = (torch.arange(cells) + 0.5) * (2 * limit / cells) - limit
    return torch.cartesian_prod(axis, axis), (2 * limit / cells) ** 2


def test_both_parts_are_densities_and_the_energy_is_their_mean():
    base = fitted(clusters(300))
    points, cell = grid(8.0, 400)
    g, k = base.parts(points)
    assert float(g.exp().sum() * cell) == pytest.approx(1, abs=1e-3)
    assert float(k.exp().sum() * cell) == pytest.approx(1, abs=1e-3)
    for leaning, other in ((0.0, leaned(base, 0.0).parts(points)[1]), (0.5, k)):
        value, log_q = leaned(base, leaning).both(points)
        assert torch.allclose(value, -SCALE * ((1 - leaning) * g + leaning * k), rtol=1e-5)
        assert torch.allclose(log_q.exp(), 0.5 * (g.exp() + other.exp()), rtol=1e-4)
        assert bool((-value / SCALE <= math.log(2) + log_q + 1e-5).all())  # what rejection rests on


def test_wide_gaussians_are_students():
    scale = torch.tensor([[1.5, 0.0], [0.4, 0.7]])
    one = {"weights": torch.ones(1), "means": torch.ones(1, 2), "factors": torch.linalg.inv(scale)[None]}
    base = Base(dict(leaned(fitted(clusters(50)), 0.0).named_buffers()) | one)
    points = 5 * torch.randn(100, 2, generator=stream(0, "points"))
    known = stats.multivariate_t([1.0, 1.0], (scale @ scale.T).double().numpy(), df=4)
    assert np.allclose(base.parts(points)[1], known.logpdf(points.double().numpy()), atol=1e-4)


def test_four_groups_are_found_and_one_is_not_split():
    assert len(fitted(clusters(1000)).weights) == 4
    assert len(fitted(torch.randn(1000, 2, generator=stream(1, "one"))).weights) == 1


def test_kernels_count_as_much_as_rows_allow():
    random = stream(2, "curved")
    angle = 2 * math.pi * torch.rand(1500, generator=random)
    ring = 3 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.1 * torch.randn(1500, 2, generator=random)
    points, cell = grid(6.0, 200)
    truth = torch.distributions.Normal(0.0, 1.0).log_prob(points).sum(1)
    cost = []
    for k in range(5):  # one Gaussian is all there is to know: the share may be any that costs next to nothing
        base = fitted(torch.randn(1500, 2, generator=stream(k, "one")))
        g, kernels = base.parts(points)
        log = torch.stack([(1 - share) * g + share * kernels for share in (0.0, float(base.leaning))])
        log = log - torch.logsumexp(log, 1, keepdim=True) - math.log(cell)
        cost.append(float((truth.exp() * (log[0] - log[1])).sum() * cell))
    assert np.mean(cost) < 1e-3  # a share of a half costs 3e-3
    assert float(fitted(ring, gaussians=2).leaning) == 0.5  # two Gaussians know nothing of a ring


def test_gaussians_are_those_of_scikit_learn():
    from sklearn.mixture import GaussianMixture

    rows = clusters(2000).double()
    mine = fit_mixture(Moments(rows), 4, 1e-9, 0.0, 60)
    theirs = GaussianMixture(4, reg_covar=FLOOR, random_state=0).fit(rows.numpy())
    assert float(mine.log_prob(rows).mean()) == pytest.approx(theirs.score(rows.numpy()), abs=2e-3)
    kept, unkept = Moments(rows), Moments(rows)
    unkept.squares = None  # as where columns are many
    for one, other in zip(kept.expect(mine)[1], unkept.expect(mine)[1], strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)


def test_a_frame_is_a_change_of_variables():
    rows = clusters(300)
    frame = torch.tensor([[2.0, 0.5], [0.0, 0.5]], dtype=torch.float64)
    there = (rows.double() @ torch.linalg.inv(frame).T).float()
    base = fit_base(there, frame, BaseConfig(), stream(0, "base"))
    points = there[:50] + 0.1
    for mine, other in zip(base.parts(points), fitted(rows).parts(points @ frame.float().T), strict=True):
        assert torch.allclose(mine, other, atol=1e-3)  # |det| = 1


def test_kernels_are_sums_over_rows():
    rows = clusters(50)
    base = fitted(rows)
    points = torch.randn(20, 2, generator=stream(2, "points"))
    by_hand = torch.zeros(20, dtype=torch.float64)
    for width, share in zip(base.widths.double(), base.shares.double(), strict=True):
        distance = (points[:, None].double() - base.centres.double()).square().sum(2)
        by_hand += share * (torch.exp(-0.5 * distance / width**2) / (2 * math.pi * width**2)).mean(1)
    assert torch.allclose(base.parts(points)[1].double(), by_hand.log(), atol=1e-4)


def test_a_row_is_judged_by_the_others():
    """At a row of the table its own kernel does not count; with it, log k of an outlier would be that of its kernel."""
    rows = torch.cat([clusters(300), torch.tensor([[30.0, 30.0]])])
    base = fitted(rows)
    lonely = float(base.parts(rows[-1:])[1])
    beside = float(base.parts(rows[-1:] + 0.01)[1])
    assert lonely < beside - 50
    others = Base(dict(base.named_buffers()) | {"centres": base.centres[(base.centres != rows[0]).any(1)]})
    missing = math.log(len(others.centres) / len(base.centres))
    assert float(base.parts(rows[:1])[1]) == pytest.approx(float(others.parts(rows[:1])[1]) + missing, abs=1e-4)
    train, new = base(rows), base(clusters(300, seed=9))
    assert auc(new.numpy(), train.numpy()).value == pytest.approx(0.5, abs=0.08)


def test_a_row_had_a_part_in_finding_the_groups(monkeypatch):
    """Rows without groups: what Gaussians find there is those rows' own, and new ones are less likely."""

    def gained(seed: int) -> float:
        rows = (torch.rand(4000, 8, generator=stream(seed, "box")) - 0.5) * math.sqrt(12)
        base = fitted(rows[:2000])
        return float(base.parts(rows[:2000])[0].mean() - base.parts(rows[2000:])[0].mean())

    known = np.mean([gained(seed) for seed in range(5)])
    monkeypatch.setattr("normae.networks.base.MOST_FOUND", 1.0)
    alone = np.mean([gained(seed) for seed in range(5)])
    assert abs(known) < 0.05 < 0.07 < alone


@pytest.mark.parametrize(("number", "strength", "shrinkage"), [(1, 12.0, 0.1), (4, 6.0, 0.0)])
def test_gaussians_without_a_row_are_those_of_a_fit_without_it(number, strength, shrinkage):
    rows = torch.cat([clusters(120), torch.randn(120, 2, generator=stream(8, "more"))], dim=1).double()
    mixture = fit_mixture(Moments(rows), number, strength, shrinkage, 60)
    counts = torch.tensor([len(rows), strength, shrinkage], dtype=torch.float64)
    known = mixture.log_prob(rows) + unseen(mixture, rows, counts)[:, 0]
    rest = [Moments(rows[torch.arange(120) != i]) for i in range(30)]
    refitted = [fit_mixture(one, number, strength, shrinkage, 60, mixture) for one in rest]
    apart = torch.cat([other.log_prob(rows[i : i + 1]) for i, other in enumerate(refitted)])
    assert float((mixture.log_prob(rows)[:30] - apart).mean()) > 0.05  # what a row gains by having been seen
    assert torch.allclose(known[:30], apart, atol=0.05)
    assert abs(float((known[:30] - apart).mean())) < 0.01


def test_scores_of_few_rows_of_many_columns_are_those_of_new_rows():
    random = stream(3, "wide")
    mixing = torch.randn(20, 20, generator=random)
    rows, new = (torch.randn(n, 20, generator=random) @ mixing for n in (150, 2000))
    base = fitted(rows)
    train, fresh = base(rows).numpy(), base(new).numpy()
    assert auc(fresh, train).value == pytest.approx(0.5, abs=0.05)
    seen = Base(dict(base.named_buffers()) | {"unseen": torch.zeros_like(base.unseen)})(rows)
    assert auc(fresh, seen.numpy()).value > 0.58  # what Gaussians that know the row say


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_that_of_the_energy(dtype):
    base = fitted(clusters(200)).to(dtype)
    y = torch.cat([clusters(20, 5), 4 * torch.randn(20, 2, generator=stream(3, "far"))]).to(dtype).requires_grad_(True)
    value = base(y)
    (grad,) = torch.autograd.grad(value.sum(), y)
    mine, slope = base.value_and_grad(y.detach())
    assert torch.allclose(mine, value.detach(), rtol=1e-4)
    assert torch.allclose(slope, grad, rtol=1e-3, atol=1e-3 * float(grad.abs().max()))


@pytest.mark.parametrize("leaning", [0.0, 0.5])
def test_the_proposal_is_what_is_proposed(leaning):
    base = leaned(fitted(clusters(300)), leaning)
    draws = base.propose(40_000, stream(4, "draws"))
    points, cell = grid(8.0, 200)
    log_q = base.both(points)[1]
    for power in (1, 2):  # moments by quadrature
        expected = float((log_q.exp() * points[:, 0] ** power).sum() * cell)
        assert float((draws[:, 0] ** power).mean()) == pytest.approx(expected, abs=0.08)
    inside = ((draws > 0).all(1)).float().mean()
    assert float(inside) == pytest.approx(float((log_q.exp() * (points > 0).all(1)).sum() * cell), abs=0.01)


def energy_with_base() -> ReconstructionEnergy:
    network = build_autoencoder(NetworkConfig(2, (16,), "gelu"), (2,), stream(0, "init")).requires_grad_(False)
    network.base = fitted(clusters(400))
    return ReconstructionEnergy(network)


def test_log_z_of_draws_is_that_of_a_grid():
    energy = energy_with_base()
    known = grid_log_z(energy, 0.9 * SCALE, (-8.0, 8.0), 2, cells=300)
    found = proposed_log_z(Based(energy, 0.9 * SCALE, (-8.0, 8.0)), stream(1, "log_z"))
    assert found is not None
    assert found.value == pytest.approx(known.value, abs=4 * found.error + 1e-3)
    assert found.error < 0.02


def test_annealing_that_begins_at_the_proposal_has_the_grid_s_log_z():
    energy, temperature, bounds = energy_with_base(), 0.5 * SCALE, (-8.0, 8.0)
    known = grid_log_z(energy, temperature, bounds, 2, cells=300)
    samples = grid_draws(energy, temperature, bounds, 2, 300, stream(1, "samples"))
    config = AISConfig(chains=300, steps=40, burn_in=0)
    begin = Proposed(energy.autoencoder.base)
    found = ais_log_z(energy, temperature, begin, samples, stream(2, "annealing"), config, bounds)
    assert found.log_z.value == pytest.approx(known.value, abs=4 * found.log_z.error)
    assert found.log_z.error < 0.05


def test_samples_by_rejection_are_those_of_the_density():
    energy, temperature = energy_with_base(), 0.5 * SCALE
    events = drawn(Based(energy, temperature, (-8.0, 8.0)), 20_000, stream(2, "drawn"))
    assert events is not None
    points, _ = grid(8.0, 200)
    density = torch.softmax(-energy(points) / temperature, 0)
    proposed = energy.autoencoder.base.propose(20_000, stream(3, "proposed"))
    for part in (lambda x: x[:, 0] > 0, lambda x: (x > 0).all(1), lambda x: (x - 2.5).norm(dim=1) < 0.5):
        expected = float(density[part(points)].sum())
        assert float(part(events).float().mean()) == pytest.approx(expected, abs=0.015)
    assert abs(float(part(proposed).float().mean()) - expected) > 0.015  # the wrong version: nothing rejected
    known = grid_draws(energy, temperature, (-8.0, 8.0), 2, 20_000, stream(4, "grid"))
    for along in (lambda x: x[:, 0], lambda x: x[:, 1], lambda x: x.sum(1)):  # two samples of one density
        assert stats.ks_2samp(along(events), along(known)).pvalue > 1e-3
    assert stats.ks_2samp(proposed[:, 0], known[:, 0]).pvalue < 1e-6


def test_a_training_begins_at_the_base():
    """With T = s the error |y|^2/d would make variances 5 % too small in two columns."""
    rows = np.random.default_rng(0).normal(size=(4000, 2)) @ np.array([[2.0, 0.0], [0.5, 1.0]])
    nae = normae.NormalizedAutoencoder(start_iterations=1, learning_rate=1e-9, random_state=0).fit(rows)
    angle, model = torch.linspace(0, 2 * math.pi, 100), nae.model_
    far = 3 * torch.stack([angle.cos(), angle.sin()], dim=1)  # in y
    x = model.coordinates.inverse(far)
    expected = model.autoencoder.base.parts(far)[0] + model.coordinates.log_slope(x)
    assert abs(float((torch.from_numpy(nae.score_samples(x.numpy())) - expected).mean())) < 0.05  # 0.18 with T = s


def test_a_base_that_does_not_belong_is_refused():
    tensors = dict(fitted(clusters(50)).named_buffers())
    assert isinstance(read_base(tensors, 2, "file"), Base)
    for wrong in (tensors | {"means": tensors["means"][:, :1]}, {"frame": tensors["frame"]}):
        with pytest.raises(InputError, match="the base does not belong to the model"):
            read_base(wrong, 2, "file")


@pytest.mark.parametrize("columns", [1, 3])
def test_odd_tables_have_a_base(columns):
    random = np.random.default_rng(0)
    few = torch.from_numpy(random.normal(size=(10, columns)))
    same = torch.from_numpy(random.integers(0, 2, size=(200, columns)).astype(float))
    for rows in (few, same):
        base = fitted(rows.float())
        assert bool(torch.isfinite(base(rows.float())).all())
        assert bool(torch.isfinite(base.value_and_grad(rows.float())[1]).all())


def test_a_model_with_a_base_is_the_same_after_a_file(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 3))
    nae = normae.NormalizedAutoencoder(start_iterations=20, random_state=0).fit(rows)
    nae.save(tmp_path / "run")
    again = normae.NormalizedAutoencoder.load(tmp_path / "run")
    assert np.array_equal(again.score_samples(rows), nae.score_samples(rows))


def test_without_kernels_it_is_gaussians_told_from_wider_ones():
    rows = torch.randn(600, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 0.3])
    base = fit_base(rows, torch.eye(2), BaseConfig(gaussians=2, kernels=False), torch.Generator().manual_seed(0))
    value, log_q = base.both(rows)
    assert bool((value / -SCALE <= log_q + math.log(2)).all())
    assert torch.allclose(base(rows), value)
    y = rows.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(base(y).sum(), y)
    assert torch.allclose(base.value_and_grad(rows)[1], slope, atol=1e-3)
    drawn = base.propose(20_000, torch.Generator().manual_seed(2))
    there, log_there = base.both(drawn)
    assert float((there / -SCALE - log_there).exp().mean()) == pytest.approx(1, abs=0.03)  # draws are of q, b is one
    again = read_base({name: getattr(base, name) for name in Base.NAMES}, 2, "file")
    assert torch.equal(again.both(rows)[1], log_q)
