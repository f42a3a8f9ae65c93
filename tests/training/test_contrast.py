"""The start by classification: what it learns, when it stops, and that it resumes and rolls back like any phase."""

import math

import pytest
import torch

from normae.errors import TrainingDiverged
from normae.networks import NetworkConfig, build_mlp_autoencoder
from normae.sampling import ChainConfig, SamplingConfig
from normae.tensors import stream
from normae.training import (
    Checkpoint,
    ContrastConfig,
    GuardConfig,
    PhaseConfig,
    Record,
    Rollback,
    Schedules,
    TemperatureConfig,
    Trainer,
    TrainingConfig,
)
from normae.training.backends import Group

SAMPLING = SamplingConfig(
    buffer=300, replay=1.0, buffer_space="feature", chains_from="data", latent=ChainConfig(steps=0),
    feature=ChainConfig(steps=3, step_size=0.01, bounds=(-5, 5), adapt=0.65),
)  # fmt: skip

NORMAL = torch.distributions.Normal(0.0, 1.0)


def rows(n: int, seed: int) -> torch.Tensor:
    """Two columns with variance one, correlated by a half."""
    z = torch.randn(n, 2, generator=stream(seed, "rows"))
    return torch.stack([z[:, 0], 0.5 * z[:, 0] + math.sqrt(0.75) * z[:, 1]], dim=1)


def make_trainer(seeds=(0,), contrast=None, guard=None, epochs=2, n=1000) -> Trainer:
    contrast = contrast or ContrastConfig(iterations=40, batch=100, every=5, patience=2)
    schedules = Schedules(
        PhaseConfig(),
        TrainingConfig(epochs=epochs, batch=100, learning_rate=1e-4, average=0.9),
        TemperatureConfig(),
        guard or GuardConfig(log_every=5, checkpoint_every=5),
        contrast=contrast,
    )
    config = NetworkConfig(hidden=(16, 16), latent=3, activation="silu")
    networks = [build_mlp_autoencoder(config, (2,), stream(s, "init")) for s in seeds]
    data, held = [rows(n, s) for s in seeds], [rows(400, 100 + s) for s in seeds]
    return Trainer(networks, data, schedules, SAMPLING, list(seeds), torch.device("cpu"), validation=held)


def finish(trainer: Trainer) -> Trainer:
    for _ in trainer.run():
        pass
    return trainer


def test_it_begins_at_the_gaussian():
    trainer = make_trainer()
    x = rows(50, 3)
    energy = trainer.models.energy(trainer.weights)(x)
    log_p = -energy / trainer.models.log_temperature.exp() - trainer.models.extra["contrast.log_z"]
    assert torch.allclose(log_p, NORMAL.log_prob(x).sum(1), atol=0.3)


def test_it_says_how_many_rows_it_uses(monkeypatch):
    monkeypatch.setattr("normae.training.contrast.ROWS", 500)
    assert make_trainer(contrast=ContrastConfig(batch=100, draws=600)).note == ", uses 600 of 1,000 rows"
    assert make_trainer().note == ""


def test_it_learns_the_density_with_its_constant():
    """The correlation is worth -log(3/4)/2 = 0.144 of log p beyond the Gaussian; c is known to a few hundredths."""
    trainer = finish(make_trainer(contrast=ContrastConfig(iterations=300, learning_rate=3e-3), epochs=0, n=5000))
    x = rows(20_000, 7)
    energy = trainer.models.energy(trainer.weights)(x)
    log_p = -energy / trainer.models.log_temperature.exp() - trainer.models.extra["contrast.log_z"]
    gain = float((log_p - NORMAL.log_prob(x).sum(1)).mean())
    assert 0.09 < gain < 0.20


@pytest.mark.parametrize("stop_after", [1, 10, 40, 45])
def test_resume_is_bit_identical(stop_after):
    whole = finish(make_trainer((0, 1)))
    first = make_trainer((0, 1))
    for happening in first.run():
        done = first.place[1] + (0 if first.place[0] == "contrast" else 40)
        if isinstance(happening, Checkpoint) and done >= stop_after:
            break
    second = make_trainer((0, 1))
    second.load(first.snapshot())
    finish(second)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, second.state()[name]), name


def test_models_side_by_side_stop_and_keep_as_they_would_alone():
    contrast = ContrastConfig(iterations=400, batch=100, every=5, patience=2, learning_rate=1e-2)
    both = finish(make_trainer((0, 1), contrast, epochs=0, n=200))
    for k, seed in enumerate((0, 1)):
        alone = finish(make_trainer((seed,), contrast, epochs=0, n=200))
        assert int(both.models.extra["contrast.found"][k]) == int(alone.models.extra["contrast.found"])
        assert torch.allclose(both.weights[k], alone.weights[0], atol=1e-4)


def test_it_stops_early_and_keeps_the_best_weights():
    contrast = ContrastConfig(iterations=2000, batch=50, every=5, patience=3, learning_rate=3e-2)
    trainer = make_trainer(contrast=contrast, epochs=0, n=60)
    records = [h for h in trainer.run() if isinstance(h, Record)]
    found = int(trainer.models.extra["contrast.found"])
    assert records[-1].phase == "contrast"
    assert records[-1].iteration == found + 4 * 5 < 2000
    best = min(r.values["validation_loss"][0] for r in records)
    assert records[-1].values["best_loss"][0] <= best
    start = trainer.phases[0]
    with torch.no_grad():
        now = start.loss(trainer.weights, trainer.models.log_temperature, start.log_z, held=True)
    assert float(now) == pytest.approx(records[-1].values["best_loss"][0], rel=1e-5)


def test_all_processes_decide_together(monkeypatch):
    """On rows that differ from process to process each would stop at another time, and they would wait for ever."""
    monkeypatch.setattr(Group, "mean", lambda _, tensor: torch.full_like(tensor, 7.0))
    phase = make_trainer().phases[0]
    phase._look()
    assert phase.latest.tolist() == phase.best_loss.tolist() == [7.0]


def test_the_likelihood_begins_with_what_was_found():
    trainer = make_trainer(guard=GuardConfig(log_every=5, checkpoint_every=5))
    for happening in trainer.run():
        if happening == ("training", 0):
            break
    best = trainer.models.extra["contrast.best"]
    assert torch.equal(trainer.weights, best[:, :-2])
    assert torch.equal(trainer.models.average_log_temperature, best[:, -2:-1])
    table = {tuple(row) for row in rows(1000, 0).tolist()}
    assert all(tuple(row) in table for row in trainer.models.buffer.storage[0].tolist()), "chains begin at rows"
    assert float(trainer.models.log_sizes[1].exp()) > 0.05, "the step size was tuned"


def test_a_runaway_is_rolled_back():
    trainer = make_trainer()
    returns = []
    for happening in trainer.run():
        if isinstance(happening, Rollback):
            returns.append(happening)
        if happening == ("contrast", 10) and not returns:
            trainer.weights[0, 0] = torch.nan
    assert [(r.phase, r.iteration) for r in returns] == [("contrast", 10)]
    assert float(trainer.rate_scale) == 0.5
    assert trainer.finished
    wild = make_trainer(contrast=ContrastConfig(iterations=40, batch=100, learning_rate=1e30))
    with pytest.raises(TrainingDiverged, match="not finite at iteration 5 of contrast, after 5 rollbacks"):
        finish(wild)


# --- weights

TWICE, NOT = torch.cat([torch.full((200,), 2.0), torch.zeros(200)]), rows(200, 7)
PAIRS = torch.tensor([3.0, -1.0]).repeat(200)


@pytest.mark.parametrize(
    ("weighted", "weights", "plain"),
    [
        (torch.cat([rows(200, 5), NOT]), TWICE, rows(200, 5).repeat(2, 1)),
        (rows(200, 5).repeat_interleave(2, dim=0), PAIRS, rows(200, 5).repeat(2, 1)),
    ],
    ids=["whole", "negative"],
)
def test_weights_count_exactly(weighted, weights, plain):
    """Rows that count twice or not at all, and pairs of 3 and -1: the losses are those of rows that are there twice."""

    def trained(x, w, contrast, epochs):
        training = TrainingConfig(epochs=1, batch=400, average=0.9)
        schedules = Schedules(PhaseConfig(epochs=epochs, batch=400), training, TemperatureConfig(), contrast=contrast)
        network = build_mlp_autoencoder(NetworkConfig(hidden=(16, 16), latent=3), (2,), stream(0, "init"))
        given = None if w is None else ([w], [w])
        return Trainer([network], [x], schedules, SAMPLING, [0], torch.device("cpu"), validation=[x], weights=given)

    def losses(x, w):
        start = trained(x, w, ContrastConfig(iterations=5, batch=400), 0)
        phase, state = start.current, start.models
        start.current.advance()
        numbers = (state.weights, state.log_temperature, phase.log_z)
        found = [phase.loss(*numbers, held=True), phase.loss(*numbers)]
        for epochs in (1, 0):  # the autoencoder, and the first update of the likelihood
            trainer = trained(x, w, None, epochs)
            if epochs == 0:
                trainer.enter(1)
            trainer.current.advance()
            record = trainer.record().values
            found += [torch.tensor(record["positive_energy"]), torch.tensor(record["validation_energy"])]
        return torch.cat([value.detach().double().flatten() for value in found])

    assert torch.allclose(losses(weighted, weights), losses(plain, None), rtol=2e-4)
    assert not torch.allclose(losses(weighted, None), losses(plain, None), rtol=1e-2) or weights is PAIRS
