"""p(x | m): mean, width, skew and correlation of x1 and x2 depend on m; the window of m is left out of the training."""

import logging

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp, norm

import normae
from command import command
from normae.errors import InputError
from normae.runs.folder import RunFolder, read_tensors, write_tensors

WINDOW = (3.3, 3.7)
FAST = {"start_iterations": 300, "hidden": (64, 64), "random_state": 0}


def rows(m, seed):
    """Rows (m, x1, x2), at every m of `m`."""
    a, b = np.random.default_rng(seed).normal(size=(2, len(m)))
    share = 0.4 * (m - 3.5)
    b = share * a + np.sqrt(1 - share**2) * b
    return np.column_stack([m, m**2 / 2 + (0.2 * m - 0.3) * a, np.exp(0.3 * b + 0.2 * m)])


def truth(x):
    """log p(x | m)."""
    m, x1, x2 = x.T
    a, b, share = (x1 - m**2 / 2) / (0.2 * m - 0.3), (np.log(x2) - 0.2 * m) / 0.3, 0.4 * (m - 3.5)
    slopes = np.log((0.2 * m - 0.3) * 0.3 * x2)
    return norm.logpdf(a) + norm.logpdf(b, share * a, np.sqrt(1 - share**2)) - slopes


def masses(n, seed, window=True):
    m = np.random.default_rng(seed).uniform(2.5, 4.5, n)
    return m if window else m[(m < WINDOW[0]) | (m > WINDOW[1])]


@pytest.fixture(scope="module")
def table():
    return rows(masses(5000, 0, window=False), 1)


@pytest.fixture(scope="module")
def fitted(table):
    return normae.NormalizedAutoencoder(condition=[0], **FAST).fit(table)


@pytest.fixture(scope="module")
def new():
    return rows(masses(2000, 2), 3)


def rms(nae, x):
    return float(np.sqrt(np.mean((nae.score_samples(x) - truth(x)) ** 2)))


def test_log_p_in_the_sidebands_and_in_the_window_that_was_left_out(fitted, new):
    inside = (new[:, 0] > WINDOW[0]) & (new[:, 0] < WINDOW[1])
    assert fitted.score_kind_ == "log_prob"
    assert rms(fitted, new[~inside]) < 0.25
    assert rms(fitted, new[inside]) < 0.25


def test_a_model_that_does_not_know_the_condition_is_far_off(table, new):
    mixed = table.copy()
    mixed[:, 0] = np.random.default_rng(0).permutation(mixed[:, 0])
    blind = normae.NormalizedAutoencoder(condition=[0], **FAST | {"start_iterations": 25}).fit(mixed[:500])
    assert rms(blind, new) > 1


@pytest.mark.parametrize("m", [2.6, 3.5, 4.4])
def test_the_integral_over_x_is_one_at_every_m(fitted, m):
    x1, x2 = np.linspace(m**2 / 2 - 3.5, m**2 / 2 + 3.5, 50), np.linspace(0.02, 9, 70)
    grid = np.stack(np.meshgrid([m], x1, x2, indexing="ij"), axis=-1).reshape(-1, 3)
    total = np.exp(fitted.score_samples(grid)).sum() * (x1[1] - x1[0]) * (x2[1] - x2[0])
    assert abs(total - 1) < 4 * fitted.log_z_.error + 2e-3


def test_log_z_depends_on_m(fitted):
    """With one constant for all m the integrals would be wrong by more than their error."""
    base = fitted.model_.autoencoder.base
    change = base.offset[1:].abs().max() / fitted.temperature_
    assert change > 5 * fitted.log_z_.error


@pytest.mark.parametrize("m", [2.8, 3.5])
def test_samples_at_m_are_those_of_the_truth(fitted, m):
    found, true = fitted.sample(1500, 0, condition=m), rows(np.full(1500, m), 4)
    assert (found[:, 0] == m).all()
    values = [ks_2samp(found[:, k], true[:, k]).pvalue for k in (1, 2)]
    assert min(values) > 1e-3
    assert abs(np.corrcoef(found[:, 1:].T)[0, 1] - np.corrcoef(true[:, 1:].T)[0, 1]) < 0.12


def test_samples_at_an_array_of_m_and_at_that_of_random_rows(fitted, table):
    m = masses(50, 5)
    assert (fitted.sample(50, 0, condition=m)[:, 0] == m).all()
    some = fitted.sample(400, 0)
    assert ks_2samp(some[:, 0], table[:, 0]).pvalue > 1e-3
    assert not ((some[:, 0] > WINDOW[0]) & (some[:, 0] < WINDOW[1])).any()


def test_beyond_the_training_sample_the_density_is_that_of_its_edge(fitted, table, caplog):
    edge, x = table[:, 0].max(), table[:5].copy()
    beyond = x.copy()
    x[:, 0], beyond[:, 0] = edge, edge + 2
    np.testing.assert_allclose(fitted.score_samples(beyond), fitted.score_samples(x), atol=1e-6)
    with caplog.at_level(logging.WARNING):
        fitted.sample(2, 0, condition=edge + 2)
    assert "2 of 2 conditions lie outside the training sample" in caplog.text


def test_parts_of_the_score_add_up_and_a_saved_run_says_the_same(fitted, new, tmp_path):
    np.testing.assert_allclose(fitted.model_.explain(new[:5]).sum(1), fitted.model_.score(new[:5]), rtol=1e-4)
    fitted.save(tmp_path / "run")
    again = normae.NormalizedAutoencoder.load(tmp_path / "run")
    assert again.condition == (0,)
    np.testing.assert_array_equal(again.score_samples(new[:5]), fitted.score_samples(new[:5]))
    path = RunFolder(tmp_path / "run").model
    tensors, header = read_tensors(path)
    for name in ("coordinates.given", "coordinates.location", "coordinates.condition.width", "base.conditions"):
        write_tensors(path, {key: t for key, t in tensors.items() if key != name}, header)
        with pytest.raises(InputError, match="train it again|do not belong"):
            normae.load(tmp_path / "run")


def test_two_conditions_in_the_order_in_which_they_are_named():
    random = np.random.default_rng(0)
    m = random.uniform(0, 1, (600, 2)) * [1, 10]
    x = 3 * m[:, 0] + m[:, 1] + (0.1 + 0.2 * m[:, 0]) * random.normal(size=600)
    frame = pd.DataFrame({"a": m[:, 0], "x": x, "b": m[:, 1]})
    nae = normae.NormalizedAutoencoder(condition=["b", "a"], **FAST | {"start_iterations": 25}).fit(frame)
    error = nae.score_samples(frame) - norm.logpdf(x, 3 * m[:, 0] + m[:, 1], 0.1 + 0.2 * m[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.25
    found = nae.sample(1000, 0, condition=[5.0, 0.5]).to_numpy()
    assert (found[:, [0, 2]] == [0.5, 5.0]).all()
    assert found[:, 1].mean() == pytest.approx(6.5, abs=0.05)
    assert found[:, 1].std() == pytest.approx(0.2, rel=0.15)


def test_one_number_of_each_row_is_no_condition_of_two_columns():
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.uniform(size=(400, 3)), columns=["m", "k", "x"])
    nae = normae.NormalizedAutoencoder(condition=["m", "k"], random_state=0, start_iterations=20).fit(x)
    assert np.array_equal(nae.sample(2, condition=[0.5, 0.2])[["m", "k"]], [[0.5, 0.2]] * 2)
    for wrong in (np.array([[0.5], [0.2]]), np.array([[0.5, np.nan]])):
        with pytest.raises(InputError, match="expected 2 finite numbers, or those of 2 rows"):
            nae.sample(2, condition=wrong)


def test_what_cannot_be_a_condition_is_said_in_one_sentence(table):
    for given, words in (("mjj", "got 'mjj'"), ([3], "got \\[3\\]"), ([0, 1, 2], "not all"), ([0, 0], "not all")):
        with pytest.raises(InputError, match=f"condition: expected .*{words}"):
            normae.NormalizedAutoencoder(condition=given).fit(table[:50])
    for wrong in ({"bayesian": True}, {"iterations": 5}):
        with pytest.raises(InputError, match="condition: expected .*no"):
            normae.NormalizedAutoencoder(condition=[0], **wrong).fit(table[:50])
    with pytest.raises(InputError, match="condition: expected rows without weights; leave one"):
        normae.NormalizedAutoencoder(condition=[0]).fit(table[:50], sample_weight=np.linspace(1, 2, 50))
    plain = normae.NormalizedAutoencoder(start_iterations=5, log_z="never").fit(table[:50])
    with pytest.raises(InputError, match="condition: expected a model of"):
        plain.sample(2, condition=3.5)


def test_commands(tmp_path, capsys):
    names, sets = ["mjj", "x1", "x2"], ["--set", "contrast.iterations=25", "--set", "network.hidden=[16,16]"]
    file, run, new = tmp_path / "rows.csv", tmp_path / "run", tmp_path / "new.csv"
    pd.DataFrame(rows(masses(800, 0, window=False), 1), columns=names).to_csv(file, index=False)
    x = rows(masses(200, 2), 3)
    x[:20, 0] = 9
    pd.DataFrame(x, columns=names).to_csv(new, index=False)
    assert command("train", file, "-o", run, "--condition", "mass")
    assert "condition: expected columns of the table (mjj, x1, x2), got 'mass'" in capsys.readouterr().err
    assert not command("train", file, "-o", run, "--condition", "mjj", *sets)
    assert not command("score", run, new, "-o", tmp_path / "scores.csv")
    assert "20 of 200 rows lie outside the range of the training sample in `mjj`" in capsys.readouterr().err
    scores = pd.read_csv(tmp_path / "scores.csv")
    np.testing.assert_allclose(scores.log_prob, normae.load(run).log_prob(x), atol=1e-4)
    assert not command("sample", run, "-n", 10, "--condition", 3.5, "-o", tmp_path / "samples.npz")
    assert (np.load(tmp_path / "samples.npz")["x"][:, 0] == 3.5).all()
    assert not command("evaluate", run)
    metrics = RunFolder(run).read_metrics()
    assert metrics["auc_samples"]["value"] < 0.5 + max(0.05, 3 * metrics["auc_samples"]["error"])
    assert metrics["wasserstein mjj"]["value"] < 1e-6
    assert not command("report", run)
    assert command("export", run, "--onnx", "-o", tmp_path / "model.onnx")
    assert "a model of p(x | m) has no ONNX form" in capsys.readouterr().err
