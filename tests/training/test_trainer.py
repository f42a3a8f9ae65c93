"""The loop: Adam, losses, resuming, several seeds, the guard, and that it learns."""

import math
from functools import partial

import pytest
import torch

from normae.data import two_gaussians
from normae.errors import InputError, TrainingDiverged
from normae.networks import NetworkConfig, build_mlp_autoencoder
from normae.sampling import ChainConfig, SamplingConfig
from normae.tensors import stream
from normae.training import (
    Checkpoint,
    GuardConfig,
    PhaseConfig,
    Record,
    Rollback,
    Schedules,
    TemperatureConfig,
    Trainer,
    TrainingConfig,
)
from normae.training.phases import clip_rows, contrastive, regularizers, temperature_gradient
from normae.training.state import Adam


def make_trainer(seeds=(0,), schedules=None, sampling=None, n=1000) -> Trainer:
    config = NetworkConfig(hidden=(16, 16), activation="silu")
    networks = [build_mlp_autoencoder(config, (2,), stream(s, "init")) for s in seeds]
    data = [two_gaussians().sample(n, stream(s, "data")) for s in seeds]
    schedules = schedules or Schedules(
        PhaseConfig(epochs=2, batch=100, latent_penalty=1e-5),
        TrainingConfig(epochs=2, batch=100, learning_rate=1e-3, average=0.9, schedule="cosine", negative_penalty=0.1),
        TemperatureConfig(),
        GuardConfig(log_every=5, checkpoint_every=5),
    )
    sampling = sampling or SamplingConfig(
        buffer=300,
        latent=ChainConfig(steps=3, step_size=0.02),
        feature=ChainConfig(steps=4, step_size=0.1, bounds=(-4.5, 4.5), adapt=0.7),
    )
    return Trainer(networks, data, schedules, sampling, list(seeds), torch.device("cpu"))


def finish(trainer: Trainer) -> Trainer:
    for _ in trainer.run():
        pass
    return trainer


def test_adam_is_torch_s_adam():
    g = stream(0, "adam")
    ours = torch.randn(3, 7, generator=g)
    theirs = ours.clone().requires_grad_(True)
    reference = torch.optim.Adam([theirs], lr=1e-2)
    adam = Adam(ours)
    for _ in range(20):
        grad = torch.randn(3, 7, generator=g) * torch.tensor([[1.0], [1e-6], [1e3]])
        theirs.grad = grad.clone()
        reference.step()
        adam.update(grad, torch.full((3,), 1e-2))
    assert torch.allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_the_average_of_the_weights_by_hand():
    """a <- k a + (1 - k) w with k = min(0.5, (i + 1)/(i + 10)) after update i, from the weights at the start."""
    schedules = Schedules(
        PhaseConfig(epochs=0),
        TrainingConfig(iterations=12, batch=100, learning_rate=1e-2, average=0.5),
        TemperatureConfig(),
        GuardConfig(log_every=1, checkpoint_every=1),
    )
    trainer = make_trainer(schedules=schedules, n=200)
    wanted = trainer.weights.clone()
    for event in trainer.run():
        if isinstance(event, Record):
            i = trainer.models.position[1] - 1
            keep = min(0.5, (i + 1) / (i + 10))
            wanted = keep * wanted + (1 - keep) * trainer.weights
            assert torch.allclose(trainer.models.average, wanted, atol=1e-6)
    assert not torch.allclose(trainer.models.average, trainer.weights, atol=1e-6)


def test_losses_by_hand():
    positive, negative = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0])
    temperature = torch.tensor([0.5])
    config = TrainingConfig(negative_penalty=0.1)
    assert float(contrastive(positive, negative, temperature, config)) == pytest.approx((2 - 3) / 0.5 + 0.1 * 10)
    plain = TrainingConfig(loss_scale="plain")
    assert float(contrastive(positive, negative, temperature, plain)) == pytest.approx(-1)
    weights, z = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]])
    phase = PhaseConfig(latent_penalty=0.5, l2_penalty=0.1)
    assert float(regularizers(weights, [z, z], phase)) == pytest.approx(0.5 * 5 * 2 + 0.1 * 5)
    assert float(temperature_gradient(positive, negative, temperature)) == pytest.approx(2.0)
    assert torch.allclose(clip_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 1.0).norm(dim=1), torch.tensor([1.0, 0.0]))


def test_temperature_gradient_is_the_derivative():
    """dL/dlog T of L = (E+ - E-)/T, by finite differences."""
    positive, negative = (
        torch.rand(10, generator=stream(0, "p")).double(),
        torch.rand(10, generator=stream(0, "n")).double(),
    )

    def loss(log_t: float) -> float:
        return float((positive.mean() - negative.mean()) / math.exp(log_t))

    slope = (loss(math.log(0.3) + 1e-5) - loss(math.log(0.3) - 1e-5)) / 2e-5
    assert float(temperature_gradient(positive, negative, torch.tensor([0.3]).double())) == pytest.approx(
        slope, rel=1e-6
    )


@pytest.mark.parametrize("stop_after", [1, 7, 19, 23, 38])
def test_resume_is_bit_identical(stop_after):
    whole = finish(make_trainer())
    first = make_trainer()
    for happening in first.run():
        done = first.place[1] + (20 if first.place[0] != "pretraining" else 0)
        if isinstance(happening, Checkpoint) and done >= stop_after:
            break
    saved = first.snapshot()
    second = make_trainer()
    second.load(saved)
    finish(second)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, second.state()[name]), name


def test_stop_leaves_a_checkpoint_in_the_middle():
    whole = finish(make_trainer())
    trainer = make_trainer()
    for happening in trainer.run():
        if isinstance(happening, Record) and happening.phase == "training" and happening.iteration == 5:
            trainer.stop = True
    assert not trainer.finished
    assert trainer.place == ("training", 5)
    again = make_trainer()
    again.load(trainer.snapshot())
    assert torch.equal(finish(again).weights, whole.weights)


def break_and_stop(trainer, advance) -> None:
    advance()
    trainer.weights[0, 0] = torch.nan
    trainer.stop = True


def test_a_stop_never_saves_a_diverged_state():
    """Weights that turned NaN within a window of metrics are not written by an interruption."""
    trainer = make_trainer()
    saved = []
    for happening in trainer.run():
        if isinstance(happening, Checkpoint):
            saved.append(trainer.snapshot())
        if isinstance(happening, Record) and happening.phase == "training" and happening.iteration == 5:
            trainer.current.advance = partial(break_and_stop, trainer, trainer.current.advance)
    assert torch.isfinite(saved[-1]["weights"]).all()


def test_a_window_that_was_interrupted_is_averaged_whole():
    """Stop in the middle of a window, resume: the next line of metrics is that of the undisturbed run."""
    whole = [h for h in make_trainer().run() if isinstance(h, Record)]
    first = make_trainer()
    phase = first.phases[1]
    advance = phase.advance

    def stopping() -> None:
        advance()
        first.stop = first.place == ("training", 7)

    phase.advance = stopping
    for _ in first.run():
        pass
    second = make_trainer()
    second.load(first.snapshot())
    rest = [h for h in second.run() if isinstance(h, Record)]
    assert rest == [record for record in whole if record.phase == "training" and record.iteration >= 10]


def test_seeds_side_by_side_are_the_single_runs():
    """The same numbers up to rounding, which a batched product may do in another order."""
    both = finish(make_trainer((0, 1)))
    for k, seed in enumerate((0, 1)):
        alone = finish(make_trainer((seed,)))
        assert torch.allclose(both.weights[k], alone.weights[0], atol=2e-3)
        assert torch.allclose(both.models.log_temperature[k], alone.models.log_temperature[0], atol=1e-3)


def test_reference_and_explicit_agree():
    sampling = {
        "buffer": 300,
        "latent": ChainConfig(steps=3, step_size=0.02),
        "feature": ChainConfig(steps=4, step_size=0.1, bounds=(-4.5, 4.5)),
    }
    a = finish(make_trainer(sampling=SamplingConfig(backend="reference", **sampling)))
    b = finish(make_trainer(sampling=SamplingConfig(backend="explicit", **sampling)))
    assert a.setup.backend.name == "reference"
    assert b.setup.backend.name == "explicit"
    assert torch.allclose(a.weights, b.weights, atol=2e-3)


def test_a_backend_that_cannot_serve_says_why(caplog):
    trainer = make_trainer(sampling=SamplingConfig(backend="graph"))
    assert trainer.setup.backend.name == "explicit"
    assert "needs a CUDA device" in caplog.text


def test_records():
    records = [h for h in make_trainer((0, 1)).run() if isinstance(h, Record)]
    assert [r.phase for r in records] == ["pretraining"] * 4 + ["training"] * 4
    last = records[-1]
    assert last.epoch == 2.0
    assert {"positive_energy", "negative_energy", "temperature", "latent_acceptance", "feature_acceptance"} <= set(
        last.values
    )
    assert all(len(column) == 2 for column in last.values.values())


def test_average_and_schedule():
    trainer = finish(make_trainer())
    assert not torch.equal(trainer.models.average, trainer.weights)
    assert torch.equal(trainer.models.result()[0], trainer.models.average)
    rates = [
        h.values["learning_rate"][0] for h in make_trainer().run() if isinstance(h, Record) and h.phase == "training"
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.05 * rates[0]


def test_warmup_rises_to_the_learning_rate():
    schedules = Schedules(PhaseConfig(epochs=0), TrainingConfig(epochs=2, batch=100, learning_rate=1e-3, warmup=9))
    trainer = make_trainer(schedules=schedules)
    trainer.enter(1)
    rates = []
    for _ in range(12):
        rates.append(1e-3 * trainer.current.factor())
        trainer.models.position[1] += 1
    assert rates[1] == pytest.approx(2e-4)
    assert rates[9:] == pytest.approx([1e-3] * 3)


def unstable(rollbacks: int) -> Trainer:
    schedules = Schedules(
        PhaseConfig(epochs=1, batch=100),
        TrainingConfig(epochs=4, batch=100, learning_rate=3e38),
        TemperatureConfig(),
        GuardConfig(log_every=2, checkpoint_every=4, rollbacks=rollbacks),
    )
    return make_trainer(schedules=schedules)


def collect(trainer: Trainer, into: list) -> None:
    """Run into a list that is kept when the run raises."""
    for happening in trainer.run():
        into.append(happening)


def test_a_runaway_is_rolled_back_and_then_stopped_with_a_reason():
    happenings = []
    with pytest.raises(TrainingDiverged, match=r"seed 0: .* after 3 rollbacks; lower training.learning_rate"):
        collect(unstable(3), happenings)
    rollbacks = [h for h in happenings if isinstance(h, Rollback)]
    assert len(rollbacks) == 3
    assert all("seed 0" in r.reason for r in rollbacks)


def test_rollback_returns_to_the_checkpoint_with_a_smaller_step():
    trainer = unstable(3)
    before = None
    for happening in trainer.run():
        if isinstance(happening, Checkpoint) and happening.phase == "training":
            before = trainer.snapshot()
        if isinstance(happening, Rollback):
            break
    assert torch.equal(trainer.weights, before["weights"])
    assert torch.equal(trainer.models.position, before["position"])
    assert float(trainer.rate_scale) == 0.5
    assert int(trainer.rollbacks) == 1


def test_rollback_keeps_what_the_caller_changed_when_the_phase_began():
    """The estimator puts its own chains into the buffer there."""
    trainer = unstable(3)
    for happening in trainer.run():
        if isinstance(happening, Checkpoint) and happening == ("training", 0):
            trainer.models.buffer.storage.fill_(0.25)
        if isinstance(happening, Rollback):
            break
    assert happening.iteration == 0
    assert bool((trainer.models.buffer.storage == 0.25).all())


def test_rollback_does_not_return_to_a_checkpoint_that_was_ill_already():
    """The line of metrics before the checkpoint at 10 is made to say that E+ is 1000 T too large."""
    guard = GuardConfig(log_every=5, checkpoint_every=5, largest_gap=1e4)
    phases = PhaseConfig(epochs=2, batch=100), TrainingConfig(epochs=2, batch=100)
    trainer = make_trainer(schedules=Schedules(*phases, TemperatureConfig(), guard))
    back = None
    for happening in trainer.run():
        if isinstance(happening, Record) and happening.phase == "training" and happening.iteration == 10:
            happening.values["positive_energy"][0] += 1000 * happening.values["temperature"][0]
        if isinstance(happening, Checkpoint) and happening == ("training", 10):
            trainer.weights[0, 0] = torch.nan
        if isinstance(happening, Rollback):
            back = happening.iteration
            break
    assert back == 5


def test_a_second_rollback_goes_further_back():
    """A NaN is planted after the checkpoint at 10 and after each return; the fourth finds the training well again."""
    guard = GuardConfig(log_every=5, checkpoint_every=5, largest_gap=1e4)
    phases = PhaseConfig(epochs=2, batch=100), TrainingConfig(epochs=2, batch=100)
    trainer = make_trainer(schedules=Schedules(*phases, TemperatureConfig(), guard))
    returns = []
    for happening in trainer.run():
        if isinstance(happening, Rollback):
            returns.append(happening.iteration)
        if (happening == ("training", 10) and not returns) or (isinstance(happening, Rollback) and len(returns) < 4):
            trainer.weights[0, 0] = torch.nan
    assert returns == [10, 5, 0, 0]
    assert trainer.rate_scale.tolist() == [0.5**4]
    assert trainer.finished


def test_a_good_model_is_not_touched_by_its_neighbour_s_rollback():
    """A NaN is planted in the second model once; the first ends with the same weights as if nothing had happened."""
    calm = finish(make_trainer((0, 1)))
    trainer = make_trainer((0, 1))
    planted = False
    for happening in trainer.run():
        if isinstance(happening, Checkpoint) and happening == ("training", 10) and not planted:
            trainer.weights[1, 0] = torch.nan
            planted = True
    assert trainer.rollbacks.tolist() == [0, 1]
    assert trainer.rate_scale.tolist() == [1.0, 0.5]
    assert torch.equal(trainer.weights[0], calm.weights[0])
    assert torch.isfinite(trainer.weights[1]).all()


def test_a_foreign_checkpoint_is_refused():
    state = make_trainer((0, 1)).snapshot()
    with pytest.raises(InputError, match="does not belong to this configuration"):
        make_trainer((0,)).load(state)


def test_a_checkpoint_of_another_kind_of_device_is_refused_with_the_reason():
    """A CUDA generator has 16 bytes of state."""
    state = make_trainer().snapshot()
    with pytest.raises(InputError, match="not written on cpu: its random numbers go on only on"):
        make_trainer().load(state | {"generator.0": torch.zeros(16, dtype=torch.uint8)})


def test_short_data_give_one_small_batch():
    trainer = make_trainer(n=30)
    assert trainer.current.batch == 30
    assert trainer.length("training") == 2
    finish(trainer)


def test_it_learns_the_density():
    """A small network learns a single Gaussian: log p is right up to a few hundredths where the data are."""
    from normae.data import one_gaussian
    from normae.inference import evaluate_in_chunks, grid_log_z
    from normae.networks.reconstruction import ReconstructionEnergy

    schedules = Schedules(
        PhaseConfig(epochs=3, batch=500),
        TrainingConfig(epochs=20, batch=500, learning_rate=2e-3, average=0.99, schedule="cosine"),
        TemperatureConfig(initial=0.5),
    )
    sampling = SamplingConfig(
        buffer=1000, replay=1.0, buffer_space="feature", feature=ChainConfig(steps=4, step_size=0.7, bounds=(-4.5, 4.5))
    )
    network = build_mlp_autoencoder(NetworkConfig(hidden=(24, 24), activation="gelu"), (2,), stream(0, "init"))
    data = one_gaussian().sample(20_000, stream(0, "data"))
    trainer = finish(Trainer([network], [data], schedules, sampling, [0], torch.device("cpu")))
    weights, temperature, _ = trainer.models.result()
    energy = ReconstructionEnergy(trainer.setup.architecture, trainer.setup.layout.views(weights))
    log_z = grid_log_z(energy, float(temperature), (-4.5, 4.5), 2, cells=200)
    test = one_gaussian().sample(20_000, stream(1, "test"))
    log_p = -evaluate_in_chunks(energy, test) / float(temperature) - log_z.value
    kl = float((one_gaussian().log_prob(test).double() - log_p).mean())
    assert kl < 0.02
