"""Columns on a lattice: a probability for what can occur, none in between, through every door."""

import pickle

import numpy as np
import pyarrow.parquet
import pytest
import torch
from scipy.stats import poisson

import normae
from command import command
from normae.coordinates import TableCoordinates
from normae.errors import LogZUnknown
from normae.lattice import IMPOSSIBLE, cannot_occur, doubtful, find_lattice, nearest, within_cells
from normae.networks.base import Base, BaseConfig, fit_base
from normae.networks.lattice import known, on_lattice
from normae.tensors import stream

FEW = ["contrast.iterations=150"]
GRID = np.linspace(-9, 15, 241)


def table(n, seed=0):
    """A count, a yes or no that depends on it, and a number that depends on both."""
    random = np.random.default_rng(seed)
    count = random.poisson(2, n)
    yes = random.binomial(1, np.where(count > 2, 0.7, 0.2))
    return np.column_stack([count, yes, random.normal(count - 2.0 * yes, 1.0)]).astype(float)


def probabilities(log_prob):
    """Of counts 0 to 14 and yes or no, summed over the number, with shape (15, 2)."""
    rows = np.array([(k, b, x) for k in range(15) for b in (0, 1) for x in GRID], dtype=float)
    return (np.exp(log_prob(rows)) * (GRID[1] - GRID[0])).reshape(15, 2, -1).sum(2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lattice")
    np.savez(folder / "rows.npz", **dict(zip("nbx", table(2000).T, strict=True)))
    normae.train(folder / "rows.npz", out=folder / "run", settings=FEW)
    return folder / "run"


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0, 1, 1, 2, 3] * 6, (0, 1, 0, 3)),
        ([-1, 0, 0, 1, 4] * 2 + [9] * 20, (-1, 1, -np.inf, 10)),
        ([5.1, 5.2, 5.2, 5.5] * 9, (5.1, 0.1, 0, 4)),
        (np.float32([5.1, 5.2, 5.2, 5.5] * 9), (5.1, 0.1, 0, 4)),
        ([0.0, 7.5] * 20, (0, 7.5, 0, 1)),
        (np.arange(30) * 1001, (0, 1, -np.inf, np.inf)),
        ([211, 321, 2212] * 9, (211, 1, 0, 2001)),
        ([1000000, 1000001, 1000002] * 9, (1e6, 1, 0, 2)),
        ([356000, 356120, 357020] * 9, (356000, 60, 0, 17)),
        ([2.0**60, 2.0**61] * 9, (2.0**60, 2.0**60, 0, 1)),
        (np.arange(30) * 0.1, None),
        ([3.0] * 30, None),
        (np.repeat(np.random.default_rng(0).normal(size=15), 3), None),
        (np.random.default_rng(0).normal(size=30), None),
    ],
)
def test_a_lattice_is_found_where_there_is_one(column, expected):
    found = find_lattice(np.asarray(column, dtype=np.float64)[:, None])[:, 0].numpy()
    if expected is None:
        assert found[1] == 0
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_halves_between_large_whole_numbers_cannot_occur():
    lattice = find_lattice(np.repeat([[7_000_000.0], [7_000_001.0], [7_000_003.0]], 9, axis=0))
    rows = torch.tensor([[7_000_000.5], [7_000_002.0], [7_000_003.0]], dtype=torch.float64)
    assert cannot_occur(rows, lattice)[:, 0].tolist() == [True, False, False]


def test_codes_are_told_from_counts():
    rows = np.stack([np.resize(values, 60) for values in ([211, 321, 2212], [0.1, 0.27, 3.0], [0, 1, 2])], axis=1)
    assert doubtful(rows, find_lattice(rows)) == ([0, 1], [])


def test_equal_values_among_others_are_said(caplog):
    """A tenth of the rows at zero, on no lattice: a density has no probability for one value."""
    random = np.random.default_rng(0)
    rows = random.exponential(size=(300, 3))
    rows[:30, 0], rows[:5, 1], rows[:, 2] = 0, 0, random.poisson(1, 300)
    assert doubtful(rows, find_lattice(rows)) == ([], [0])
    short = {"start_iterations": 5, "log_z": "never", "random_state": 0}
    normae.NormalizedAutoencoder(**short).fit(rows)
    assert "many rows have one and the same value in '0'" in caplog.text


def test_cells_are_around_their_values():
    lattice = find_lattice(table(500))
    rows = torch.from_numpy(table(500))
    moved = within_cells(rows, lattice, torch.Generator().manual_seed(0))
    assert torch.equal(nearest(moved, lattice), torch.cat([rows[:, :2], moved[:, 2:]], dim=1))
    assert float((moved - rows)[:, :2].std()) == pytest.approx(12**-0.5, rel=0.05)
    wrong = torch.tensor([[1.5, 0, 0.123], [1, 2, 0.1], [-1, 0, 0], [30, 1, 0]], dtype=torch.float64)
    assert cannot_occur(wrong, lattice).tolist() == [
        [True, False, False],
        [False, True, False],
        [True, False, False],
        [False] * 3,
    ]


def test_probabilities_are_those_of_the_values_and_sum_to_one(run):
    """To the error of log Z and 0.01; the truth to 0.045 for 2,000 rows. Densities without lattice do not."""
    model = normae.load(run)
    found = probabilities(model.log_prob)
    assert abs(found.sum() - 1) < 3 * model.log_z.error + 0.01
    truth = poisson.pmf(np.arange(15), 2)[:, None] * np.where(np.arange(15)[:, None] > 2, [0.3, 0.7], [0.8, 0.2])
    assert np.abs(found - truth).max() < 0.045
    plain = normae.train(table(500), settings=["contrast.iterations=5", "coordinates.lattice=false"])
    assert abs(probabilities(plain.log_prob).sum() - 1) > 0.1


def test_what_cannot_occur_has_probability_zero_and_can_still_be_ordered(run):
    model = normae.load(run)
    rows = np.array([[1.5, 0, 0], [1, 0, 0], [1.5, 0.5, 0], [1.5, 0, 40]])
    log_prob, score = model.log_prob(rows), model.score(rows)
    assert (np.exp(log_prob[[0, 2, 3]]) == 0).all()
    assert log_prob[1] > -6
    assert np.isfinite(score).all()
    assert score[1] < score[0] < score[3] < score[2]
    assert model.log_prob(np.float32([[1 + 1e-7, 0, 0]])) == pytest.approx(log_prob[1], abs=1e-4)
    parts = model.explain(rows)
    np.testing.assert_allclose(parts.sum(1), score, rtol=1e-4)
    assert (np.abs(parts[0, 1:]) < 10).all()
    assert parts[0, 0] == pytest.approx(IMPOSSIBLE, rel=0.01)


def test_samples_are_values_that_occur(run):
    model = normae.load(run)
    rows, new = model.sample(20_000, seed=0), table(4000, seed=1)
    assert not cannot_occur(torch.from_numpy(rows), model.coordinates.lattice).any()
    for k in range(6):
        assert abs((rows[:, 0] == k).mean() - (new[:, 0] == k).mean()) < 0.04
    assert abs(rows[rows[:, 0] > 2, 1].mean() - 0.7) < 0.08


def test_equal_rows_are_judged_alike_in_single_and_in_double_precision(tmp_path):
    """Which of equal rows a new one is taken for is rounding: log p of a rare pair was off by 0.8 in files."""
    random = np.random.default_rng(0)
    kind = random.choice(3, 1200, p=[0.7, 0.28, 0.02])
    rows = np.column_stack([kind, random.random(1200) < 0.1 + 0.3 * kind]).astype(float)
    nae = normae.NormalizedAutoencoder(start_iterations=20, random_state=0).fit(rows)
    values = np.array([(k, b) for k in range(3) for b in (0, 1)], dtype=float)
    np.testing.assert_allclose(nae.model_.log_prob(values), nae.score_samples(values), atol=5e-3)
    base = nae.model_.autoencoder.base
    for value in values:
        at = base.places(nae.model_.coordinates.forward(torch.from_numpy(value[None])).float())
        equal = base.unseen[(base.centres - at).square().sum(1) < 1e-6]
        assert len(equal) > 1
        assert float(equal.std(0).max()) < 1e-6
    nae.save(tmp_path / "run")
    assert command("export", tmp_path / "run", "--onnx", "-o", tmp_path / "model.onnx") == 0


def test_a_rare_value_has_its_probability():
    """A percent of the rows; it was 0.00003."""
    rare = np.repeat([1.0, 0.0], [15, 1485])
    rows = np.column_stack([rare, np.random.default_rng(0).normal(size=1500)])
    nae = normae.NormalizedAutoencoder(random_state=0).fit(rows)
    yes = np.exp(nae.score_samples(np.column_stack([np.ones_like(GRID), GRID]))).sum() * (GRID[1] - GRID[0])
    assert yes == pytest.approx(0.01, rel=0.5)
    assert nae.sample(20_000, random_state=0)[:, 0].mean() == pytest.approx(0.01, rel=0.5)


def test_files_are_scored_with_a_note_on_what_cannot_occur(run, tmp_path, capsys):
    rows = table(200, seed=2)
    rows[:3, 0] += 0.5
    pyarrow.parquet.write_table(pyarrow.table(dict(zip("xbn", rows.T[::-1], strict=True))), tmp_path / "new.parquet")
    assert command("score", run, tmp_path / "new.parquet", "-o", tmp_path / "out.parquet", "--explain") == 0
    said = capsys.readouterr()
    assert "3 of 200 rows have a value in `n` that cannot occur" in " ".join((said.out + said.err).split())
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    np.testing.assert_allclose(found["score"], normae.load(run).score(rows), rtol=1e-5)
    assert max(found["p_value"].to_pylist()[:3]) == min(found["p_value"].to_pylist())


def test_the_onnx_graph_gives_the_same_numbers(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert command("export", run, "--onnx", "-o", tmp_path / "model.onnx") == 0
    rows = np.concatenate([table(50, seed=3), [[1.5, 0, 0], [1, 2, 0], [-1, 1, 0], [20, 1, 0]]])
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(["log_prob"], {"events": rows})[0]
    np.testing.assert_allclose(found, normae.load(run).log_prob(rows), rtol=1e-5, atol=1e-4)


def test_the_estimator_keeps_it_in_a_folder_and_in_a_pickle(tmp_path):
    rows, wrong = table(600), [[1.5, 0, 0], [1, 0, 0]]
    nae = normae.NormalizedAutoencoder(start_iterations=20, random_state=0).fit(
        rows, sample_weight=np.where(rows[:, 1], 2, 1)
    )
    assert nae.score_kind_ == "log_prob"
    assert probabilities(nae.score_samples).sum() == pytest.approx(1, abs=0.03)
    nae.save(tmp_path / "run")
    for other in (normae.NormalizedAutoencoder.load(tmp_path / "run"), pickle.loads(pickle.dumps(nae))):
        np.testing.assert_array_equal(other.score_samples(wrong), nae.score_samples(wrong))
        np.testing.assert_array_equal(other.sample(20, random_state=1), nae.sample(20, random_state=1))
    assert nae.predict(wrong).tolist() == [-1, 1]


def test_members_with_error_bars_share_a_lattice():
    nae = normae.NormalizedAutoencoder(bayesian=True, start_iterations=5, random_state=0).fit(table(300))
    assert all(torch.equal(m.coordinates.lattice, nae.model_.coordinates.lattice) for m in nae.model_.members)
    assert probabilities(lambda rows: nae.score_draws(rows)[0]).sum() == pytest.approx(1, abs=0.05)
    assert nae.score_samples([[1.5, 0, 0]])[0] < -IMPOSSIBLE + 100
    assert (nae.score_std([[1.5, 0, 0], [1, 0, 0]]) < 20).all()


def test_a_conditional_density_of_whole_numbers():
    """p(n | m), Poisson with mean m."""
    random = np.random.default_rng(0)
    m = random.uniform(1, 5, 800)
    nae = normae.NormalizedAutoencoder(condition=[1], start_iterations=20, random_state=0)
    nae.fit(np.column_stack([random.poisson(m), m]))
    for mean in (1.5, 3.0, 4.5):
        rows = np.column_stack([np.arange(20), np.full(20, mean)])
        found = np.exp(nae.score_samples(rows))
        assert found.sum() == pytest.approx(1, abs=3 * nae.log_z_.error + 0.02)
        assert np.abs(found - poisson.pmf(np.arange(20), mean)).max() < 0.08
    assert nae.score_samples([[1.5, 3.0]])[0] < -IMPOSSIBLE + 100
    assert (nae.sample(100, condition=3.0)[:, 0] % 1 == 0).all()


def test_where_hardly_any_draw_counts_a_table_has_no_log_z_but_its_order(caplog):
    """Thirty columns of yes or no: too many cells to draw from."""
    rows = np.random.default_rng(0).binomial(1, 0.3, (200, 30)).astype(float)
    nae = normae.NormalizedAutoencoder(start_iterations=5, random_state=0).fit(rows)
    assert nae.score_kind_ == "unnormalized"
    assert "hardly any draw of the base counts; coordinates.lattice = false in a run makes" in caplog.text
    with pytest.raises(LogZUnknown, match=r"coordinates.lattice = false .*continuous\. score_samples orders"):
        nae.score(rows)  # more steps of an annealing are no remedy
    assert normae.train(rows, settings=[*FEW, "coordinates.lattice=false"]).log_z.error < 0.1
    assert set(np.unique(nae.sample(20, random_state=0))) <= {0.0, 1.0}


def test_a_row_anywhere_in_its_cell_is_judged_without_itself():
    """Its own kernel is beside it there, and would make the draws of a training look rare among rows."""
    random = np.random.default_rng(0)
    groups = 3 * random.normal(size=(40, 6))
    rows, new = (
        torch.from_numpy((groups[random.integers(40, size=400)] + 0.3 * random.normal(size=(400, 6))).round(1))
        for _ in range(2)
    )
    to = TableCoordinates.of(rows, lattice=find_lattice(rows.numpy()))

    def fit(y: torch.Tensor, places: torch.Tensor | None) -> Base:
        base = fit_base(y, to.colouring, BaseConfig(gaussians=1), stream(0, "base"), None, places)
        return Base(dict(base.named_buffers()) | {"leaning": torch.tensor(0.5)})

    base = on_lattice(to, rows, fit, stream(0, "cells"))
    assert base.cells is not None
    seen, fresh = (known(base, to.forward(x).float(), stream(1, "places"))[1] for x in (rows, new))
    assert float(seen.mean()) == pytest.approx(float(fresh.mean()), abs=0.3)
    with_itself = base.cells.nearest(base.cells.spread(to.forward(rows).float(), stream(1, "places")))[1]
    assert float((with_itself - seen).mean()) > 0.2
