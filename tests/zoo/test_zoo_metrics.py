"""What metrics.json and the card of a model of the zoo say, against the weights and against each other."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from normae import jets, zoo
from normae.config import read
from normae.evaluation.evaluate import study_of
from normae.evaluation.toy import agreement, density_test, paper_grid
from normae.evaluation.toy_posterior import intervals, region_metrics
from normae.inference import grid_points
from normae.report.page import markdown_table
from normae.runs.folder import RunFolder
from normae.runs.load import load
from normae.sources import load_events
from normae.statistics import Estimate, auc


def metrics(name: str) -> dict[str, Estimate]:
    content = json.loads((zoo.path(name) / "metrics.json").read_text())
    return {key: Estimate(**value) for key, value in content.items()}


def check_numbers(name: str, points: int) -> None:
    """The sample is made again from the seed: the numbers are the same, up to rounding in float32.

    `points` are those of the grid along an axis; the correlation there is compared where they are the run's own.
    """
    config, model, said = read(zoo.path(name) / "config.toml"), load(zoo.path(name), "cpu"), metrics(name)
    events, whole = load_events(config.data, config.seed), points == config.evaluation.grid
    config = replace(config, evaluation=replace(config.evaluation, grid=points))
    found = agreement(density_test(model, config, events.density, events.test))
    for key, one in found.items():
        if whole or key != "pearson_grid":
            assert one.value == pytest.approx(said[key].value, abs=2e-6), key
            assert one.error == pytest.approx(said[key].error, rel=1e-2), key
    assert model.log_z.value == pytest.approx(said["log_z"].value, abs=1e-5)
    assert model.temperature == pytest.approx(said["temperature"].value, rel=1e-6)


def test_the_toy_s_numbers_come_from_its_weights():
    check_numbers("toy-2gauss-nae", 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toy-2gauss-nae", "toy-2gauss-nae-paper", "toy-1gauss-nae"])
def test_all_numbers_of_the_toys_come_from_their_weights(name):
    check_numbers(name, 500)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["toy-1gauss-bnae", "toy-2gauss-bnae", "toy-2gauss-bnae-paper"])
def test_the_coverage_by_region_comes_from_the_weights(name):
    config, said = read(zoo.path(name) / "config.toml"), metrics(name)
    axis, _ = paper_grid(config)
    grid = grid_points(axis[::5], 2)
    rows, true = load(zoo.path(name), "cpu").rows(grid.numpy()), load_events(config.data, config.seed).density.log_prob
    found = region_metrics(
        intervals(rows, true(grid.double()).numpy(), rows.log_prob_draws(), true(grid.double()).numpy())
    )
    assert len(found) > 3
    for key, one in found.items():
        assert one.value == pytest.approx(said[key].value, abs=2e-3), key


def check_tagging(name: str, each: int) -> None:
    """The AUC of `each` public jets of both classes is that of metrics.json, of other jets, within 4 errors."""
    part = jets.public()
    rows = np.concatenate([np.flatnonzero(part.labels == label)[:each] for label in (0, 1)])
    part = jets.from_lists([np.column_stack([one.pt, one.eta, one.phi]) for one in (part[i : i + 1] for i in rows)])
    score, signal = load(zoo.path(name), "cpu").score(jets.images(part)), np.repeat([0, 1], each) == ("qcd" in name)
    found, said = auc(score[signal], score[~signal]), metrics(name)["auc"]
    assert abs(found.value - said.value) < 4 * np.hypot(found.error, said.error)


@pytest.mark.parametrize("name", ["jets-qcd-nae", "jets-top-nae"])
def test_jets_are_tagged_as_the_metrics_say(name):
    check_tagging(name, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.names() if re.match(r"jets-\w+-(ae|nae|bae|bnae)", name)])
def test_public_jets_are_tagged_as_the_metrics_say(name):
    check_tagging(name, 900)


@pytest.mark.parametrize("name", [name for name in zoo.names() if (zoo.path(name) / "metrics.json").is_file()])
def test_a_card_says_what_the_metrics_say(name):
    """Every row of the card's table that has a name in metrics.json: paper's value and ours."""
    study, said, card = study_of(RunFolder(zoo.path(name))), metrics(name), zoo.card(name)
    rows = {cells[0]: cells[1:] for cells in re.findall(r"^\| (.*?) \| (.*?) \| (.*?)(?: \|.*)?\|?$", card, re.M)}
    checked = 0
    printed = [(value.metric, value.title, value.value) for value in study.values()]
    if not printed:  # what the paper does not have
        printed = [(metric, title, "—") for metric, title in study.own.items()]
    for metric, words, value in printed:
        title = re.findall(r"^\| (.*?) \|", markdown_table([[words], [words]]), re.M)[0]
        if metric in said and title in rows:
            paper, ours = rows[title]
            assert paper == value, title
            assert str(said[metric]) in ours, title
            checked += 1
    assert checked >= 3
