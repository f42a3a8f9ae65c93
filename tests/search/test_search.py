"""Workspaces and tables against the schemas of those who read them; p-values that are what they say."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import poisson

from normae.errors import InputError
from normae.search import Sample, Templates, hepdata_tables, workspace
from normae.statistics.histogram import covariance

pyhf = pytest.importorskip("pyhf")
yaml = pytest.importorskip("yaml")

from normae.search.inference import build, discovery, pseudo_experiments, uniformity  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

from toy_search import experiments  # noqa: E402

EDGES = np.array([0.0, 1.0, 2.0, 3.0])
EXPECTED = np.array([1000.0, 300.0, 60.0])
SIGNAL = np.array([2.0, 10.0, 20.0])


def draws_of(sample: np.ndarray, seed: int, sizes: tuple[float, ...] = (0.05, 0.02, 0.08)) -> np.ndarray:
    random = np.random.default_rng(seed)
    common = random.standard_normal((100, 1)) * np.array(sizes)
    return sample * (1 + common + 0.01 * random.standard_normal((100, 3)))


def templates(bayesian: bool = True, signal: bool = True, **changes: object) -> Templates:
    background = Sample(EXPECTED, EXPECTED / 4, draws_of(EXPECTED, 0) if bayesian else None, 5440)
    bump = Sample(SIGNAL, SIGNAL / 50, draws_of(SIGNAL, 0) if bayesian else None, 1600)
    return Templates("score", EDGES, background, bump if signal else None, **changes)


def test_samples_add_and_scale():
    """Ten events of weight 2, scaled by 3: their sum by 3, its variance by 9, each draw as the sum."""
    one = Sample(np.array([20.0]), np.array([40.0]), np.array([[20.0], [22.0]]), 10)
    three = one.scaled(3.0)
    assert (three.value, three.variance, three.events) == (60.0, 360.0, 10)
    assert three.draws.tolist() == [[60.0], [66.0]]
    both = one + three
    assert (both.value, both.variance, both.events) == (80.0, 400.0, 20)


def test_the_workspace_is_one_of_pyhf():
    found = templates(normalization=0.1)
    model = build(workspace(found))
    assert model.config.poi_name == "mu"
    names = set(model.config.par_order)
    count = len(found.shifts["background"])
    assert count >= 3
    assert names == {"mu", "background_yield", "staterror_anomaly", *(f"weights_{k}" for k in range(count))}
    start = model.config.suggested_init()
    assert np.allclose(model.expected_actualdata(start), EXPECTED + SIGNAL)


def test_nuisance_parameters_move_bins_and_samples_together():
    """Expected counts over many a ~ N(0, 1) have the covariance over draws, background and signal correlated."""
    found = templates(least=0.0)
    model = build(workspace(found))
    random, start = np.random.default_rng(0), np.array(model.config.suggested_init())
    places = [model.config.par_slice(f"weights_{k}").start for k in range(len(found.shifts["background"]))]
    moved = []
    for _ in range(4000):
        point = start.copy()
        point[places] = random.standard_normal(len(places))
        moved.append(model.expected_actualdata(point))
    both = found.background.draws + found.signal.draws
    wanted = covariance(both)
    assert np.allclose(np.cov(np.array(moved), rowvar=False), wanted, rtol=0.1, atol=0.05 * wanted.max())


def test_a_workspace_without_signal_and_without_draws():
    model = build(workspace(templates(bayesian=False, signal=False)))
    assert model.config.poi_name is None
    assert np.allclose(model.expected_actualdata(model.config.suggested_init()), EXPECTED)
    with pytest.raises(InputError, match="signal"):
        discovery(templates(signal=False))


def test_what_pyhf_refuses_is_one_sentence():
    spec = workspace(templates())
    spec["channels"][0]["samples"][0]["data"] = ["many"]
    with pytest.raises(InputError, match="not a pyhf workspace"):
        build(spec)


def test_the_signed_root_is_pyhf_s_own_statistic():
    found = templates()
    data = EXPECTED + SIGNAL
    result = discovery(found, data)
    model = build(workspace(found))
    bounds = [*model.config.suggested_bounds()]
    bounds[model.config.poi_index] = (0.0, 10.0)
    q0 = pyhf.infer.test_statistics.q0(
        0.0, [*data, *model.config.auxdata], model, model.config.suggested_init(), bounds, [False] * len(bounds)
    )
    assert result.root == pytest.approx(np.sqrt(float(q0)), rel=1e-3)
    assert result.strength == pytest.approx(1, abs=0.05)
    assert discovery(found, EXPECTED - SIGNAL).p_value > 0.9


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the validator leaves files open
def test_tables_pass_hepdata_s_validator(tmp_path):
    validator = pytest.importorskip("hepdata_validator.full_submission_validator")
    found = templates(data=np.array([990.0, 310.0, 55.0]))
    for name, documents in hepdata_tables(found, "A test.").items():
        (tmp_path / name).write_text(yaml.safe_dump_all(documents, sort_keys=False))
    check = validator.FullSubmissionValidator(schema_version="1.1.1")
    assert check.validate(directory=str(tmp_path)), check.get_messages()
    content = yaml.safe_load((tmp_path / "covariance.yaml").read_text())
    values = np.array([row["value"] for row in content["dependent_variables"][0]["values"]]).reshape(3, 3)
    assert np.allclose(values, covariance(found.background.draws))
    table = yaml.safe_load((tmp_path / "histogram.yaml").read_text())
    names = [column["header"]["name"] for column in table["dependent_variables"]]
    assert names == ["Background events", "Signal events", "Data events"]
    errors = table["dependent_variables"][0]["values"][1]["errors"]
    assert [error["label"] for error in errors] == ["statistics", "weight draws"]
    assert errors[0]["symerror"] == pytest.approx(np.sqrt(EXPECTED[1] / 4))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_broken_table_is_found_out(tmp_path):
    validator = pytest.importorskip("hepdata_validator.full_submission_validator")
    documents = hepdata_tables(templates(), "A test.")
    documents["histogram.yaml"][0]["dependent_variables"][0]["values"].pop()
    for name, content in documents.items():
        (tmp_path / name).write_text(yaml.safe_dump_all(content, sort_keys=False))
    assert not validator.FullSubmissionValidator(schema_version="1.1.1").validate(directory=str(tmp_path))


# --- calibration


def counted(share: float, forget: bool):
    """Experiments whose template is simulated with `share` of the data's size; `forget` its statistical error."""

    def draw(random):
        simulated = random.poisson(share * EXPECTED).astype(float)
        error = np.zeros(3) if forget else simulated / share**2
        background = Sample(simulated / share, error, None, int(simulated.sum()))
        return Templates("score", EDGES, background, Sample(SIGNAL, 0 * SIGNAL, None, 1)), random.poisson(
            EXPECTED
        ) * 1.0

    return draw


def test_p_values_know_the_error_of_the_simulation():
    """Uniform with it; a search that forgets it is found out."""
    assert uniformity(experiments(counted(0.5, False), 40)).ks_p_value > 0.01
    forgot = uniformity(experiments(counted(0.1, True), 40))
    assert forgot.ks_p_value < 1e-3


def test_pseudo_experiments_of_the_model_are_uniform():
    test = uniformity(pseudo_experiments(templates(), 40, seed=1))
    assert test.ks_p_value > 0.01
    share, error = test.share_below["0.5"]
    assert abs(share - 0.5) < 4 * error


@pytest.mark.parametrize(("expected", "level", "low", "high"), [(400, 1e-2, 0.7, 1.2), (400, 1e-4, 0.6, 1.3)])
def test_p_values_of_counts_that_are_known(expected, level, low, high):
    """One bin with a known background: the chance of p <= a by Poisson's distribution, over a; counts are whole."""
    edges, none = np.array([0.0, 1.0]), np.zeros(1)
    found = Templates("score", edges, Sample(np.array([expected]), none, None, 1), Sample(np.ones(1), none, None, 1))
    around = int(poisson.isf(level, expected))
    first = next(n for n in range(around - 4, around + 6) if discovery(found, np.array([float(n)])).p_value <= level)
    assert low < poisson.sf(first - 1, expected) / level < high


@pytest.mark.slow
def test_small_p_values_of_several_bins():
    """P(p <= 1e-3) and P(p <= 1e-4) from data drawn with a signal, each weighted by what it is without one."""
    random, levels = np.random.default_rng(5), (1e-3, 1e-4)
    found = Templates("score", EDGES, Sample(EXPECTED, 0 * EXPECTED, None, 1), Sample(SIGNAL, 0 * SIGNAL, None, 1))
    strong = EXPECTED + 1.6 * SIGNAL
    p, weights = [], []
    for data in random.poisson(strong, (250, 3)).astype(float):
        p.append(discovery(found, data).p_value)
        weights.append(np.exp(data @ np.log(EXPECTED / strong) + (strong - EXPECTED).sum()))
    for level in levels:
        terms = np.array(weights) * (np.array(p) <= level)
        assert terms.mean() == pytest.approx(level, rel=0.15, abs=4 * terms.std() / np.sqrt(len(terms)))


def test_the_toy_search_in_short():
    """Fresh events from the true density, through the network, to p-values."""
    from toy_search import ToySearch

    search = ToySearch("toy-2gauss-nae", expected=2000, simulated=4000, signal=50, quantiles="0.5,0.8,0.95")
    assert uniformity(experiments(search.experiment, 20)).ks_p_value > 0.005
    random = np.random.default_rng(0)
    assert discovery(search.templates(random), search.data(random, strength=4)).p_value < 1e-3


@pytest.mark.slow
def test_the_toy_search_is_calibrated():
    from toy_search import ToySearch

    test = uniformity(experiments(ToySearch("toy-2gauss-nae").experiment, 500))
    assert test.ks_p_value > 0.01
    for level, (share, error) in test.share_below.items():
        assert abs(share - float(level)) < 3.5 * error
