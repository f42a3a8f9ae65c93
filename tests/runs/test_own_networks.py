"""Networks that the user brings: trained in place, refused where they are no energy, and back from a run folder."""

import pickle
from copy import copy, deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

import normae
from command import command as invoke
from normae.config import read
from normae.networks.own import EnergyNetwork, OwnEnergy
from normae.networks.reconstruction import Layout

CLOSE = 0.35
"""Largest mean |delta log p| of an energy that has learned the Gaussian from 300 rows."""
CELLS = "evaluation.log_z_cells=120"
QUICK = [CELLS, "contrast.iterations=5", "training.iterations=2", "sampling.feature.steps=2"]
LEARN = [CELLS, "contrast.iterations=400", "contrast.learning_rate=0.01", "training.iterations=20"]
COVARIANCE = np.array([[1.0, 14.0], [14.0, 400.0]])


def layers(*sizes):
    pairs = [(nn.Linear(a, b), nn.SiLU()) for a, b in pairwise(sizes)]
    return nn.Sequential(*[layer for pair in pairs for layer in pair][:-1])


class Height(nn.Module):
    """An energy: (N, d) to (N,)."""

    def __init__(self, *sizes):
        super().__init__()
        self.net = layers(*sizes, 1)

    def forward(self, x):
        return self.net(x.flatten(1))[:, 0]


def made(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def pair(columns=2, latent=3):
    return made(lambda: layers(columns, 16, latent)), made(lambda: layers(latent, 16, columns), 1)


def gaussian(n, seed):
    return np.random.default_rng(seed).multivariate_normal([0.0, 5.0], COVARIANCE, size=n)


def ring(n, seed):
    numbers = np.random.default_rng(seed)
    angle, radius = numbers.uniform(0, 2 * np.pi, n), numbers.normal(3, 0.3, n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def true_log_prob(x):
    u = x - [0.0, 5.0]
    square = np.einsum("ni,ij,nj->n", u, np.linalg.inv(COVARIANCE), u)
    return -0.5 * square - np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(COVARIANCE)[1]


def weights(*modules):
    return torch.cat([p.detach().flatten().clone() for module in modules for p in module.parameters()])


def refused(**networks):
    """The one sentence, and nothing was changed."""
    data = networks.pop("data", gaussian(40, 0))
    before = {name: deepcopy(m.state_dict()) for name, m in networks.items() if isinstance(m, nn.Module)}
    with pytest.raises(normae.InputError) as error:
        normae.train(data, settings=QUICK, **networks)
    for name, state in before.items():
        assert all(torch.equal(state[key], tensor) for key, tensor in networks[name].state_dict().items())
    assert "\n" not in str(error.value)
    return str(error.value)


# --- trained in place


def test_encoder_and_decoder_are_trained_in_place_and_learn():
    encoder, decoder = pair()
    before, train, test = weights(encoder, decoder), ring(300, 0), ring(500, 1)
    started = normae.train(train, settings=[*QUICK, "contrast.iterations=1"], encoder=encoder, decoder=decoder)
    first = started.log_prob(test).mean()
    encoder, decoder = pair()
    model = normae.train(train, settings=LEARN, encoder=encoder, decoder=decoder)
    assert not torch.equal(weights(encoder, decoder), before)
    assert torch.equal(weights(encoder, decoder), weights(model.autoencoder))
    assert all(p.requires_grad for p in encoder.parameters())
    assert encoder.training
    assert model.log_prob(test).mean() > first + 0.2
    y = model.coordinates.forward(torch.from_numpy(test)).float()
    mine = (y - decoder(encoder(y))).square().mean(1).detach().numpy()
    np.testing.assert_allclose(mine, model.energy(test), rtol=1e-4, atol=1e-6)
    assert model.sample(50, feature_steps=5).shape == (50, 2)
    assert model.autoencoder.latent_dimension == 3


def test_an_energy_gets_close_to_a_gaussian():
    energy, test = made(lambda: Height(2, 32, 32)), gaussian(500, 1)
    untrained = normae.train(gaussian(300, 0), settings=QUICK, energy=deepcopy(energy))
    model = normae.train(gaussian(300, 0), settings=LEARN, energy=energy)
    assert np.abs(model.log_prob(test) - true_log_prob(test)).mean() < CLOSE
    assert np.abs(untrained.log_prob(test) - true_log_prob(test)).mean() > 2 * CLOSE
    assert model.temperature == 1.0
    y = model.coordinates.forward(torch.from_numpy(test)).float()
    np.testing.assert_allclose(energy(y).detach().numpy(), model.energy(test), rtol=1e-4, atol=1e-5)
    sample = model.sample(500, feature_steps=50)
    np.testing.assert_allclose(sample.std(0), np.sqrt(np.diag(COVARIANCE)), rtol=0.25)
    np.testing.assert_allclose(model.to("cpu").score(test), model.score(test))


def test_log_z_is_annealed_in_more_dimensions():
    """`required = false`: where the bounds disagree the model has no log Z, and says so."""
    data = np.random.default_rng(0).normal(size=(300, 3))
    model = normae.train(data, settings=["contrast.iterations=100", "training.iterations=10"], energy=Height(3, 16))
    assert np.isfinite(model.log_prob(data)).all()


def test_deterministic_given_the_seed():
    first, again, other = (made(lambda: Height(2, 8)) for _ in range(3))
    for energy, seed in ((first, 3), (again, 3), (other, 4)):
        normae.train(gaussian(100, 0), settings=QUICK, seed=seed, energy=energy)
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_events_of_another_shape():
    data = np.random.default_rng(0).normal(2.0, 0.5, size=(60, 1, 4, 4))
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(32, 3))
    decoder = nn.Sequential(nn.Linear(3, 16), nn.Unflatten(1, (1, 4, 4)))
    short = ["pretraining.iterations=3", "training.iterations=2"]
    model = normae.train(data, settings=short, encoder=encoder, decoder=decoder)
    assert model.score(data).shape == (60,)
    assert model.sample(3, feature_steps=2).shape == (3, 1, 4, 4)
    low, high = model.sampling.feature.bounds
    assert low < data.min() - 0.05 * np.ptp(data) < data.max() + 0.05 * np.ptp(data) < high
    with pytest.raises(normae.LogZUnknown):
        model.log_prob(data)
    model = normae.train(data, settings=["training.iterations=2"], energy=Height(16, 8))
    assert model.sample(3, feature_steps=2).shape == (3, 1, 4, 4)


def test_a_preset_with_networks_of_ones_own():
    encoder, decoder = pair()
    sizes = ["data.train=200", "data.test=10", "pretraining.epochs=1", "training.epochs=1", CELLS]
    model = normae.train("toy-quick", settings=sizes, encoder=encoder, decoder=decoder)
    assert np.isfinite(model.log_prob(np.zeros((1, 2)))).all()


def test_side_by_side():
    """Several models of one architecture at once are what each is alone."""
    modules = [EnergyNetwork(made(lambda: Height(2, 8), seed)) for seed in range(3)]
    layout = Layout.of(modules[0])
    stacked = OwnEnergy(modules[0], layout.views(layout.flatten(modules)))
    x = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0))
    value, grad = stacked.value_and_grad(x.flatten(0, 1))
    for k, module in enumerate(modules):
        alone = OwnEnergy(module).value_and_grad(x[k])
        torch.testing.assert_close(value[5 * k : 5 * k + 5], alone[0])
        torch.testing.assert_close(grad[5 * k : 5 * k + 5], alone[1])


def test_a_single_setting_and_the_name_of_a_model_in_memory():
    model = normae.train(gaussian(40, 0), settings="contrast.iterations=2")
    assert model.name == "table"


# --- refused


class Blind(nn.Module):
    """Wrong in one of many ways."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inner, self.p = how, Height(2, 4), nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        value = self.inner(x)
        if self.how == "chance":
            value = value + torch.rand(len(x))
        if self.how == "others":
            value = value + x.mean()
        if self.how == "mode" and self.training:
            value = 2 * value + 1
        if self.how == "buffer":
            self.count += 1
        if self.how == "constant":
            value = (self.p.sum() * torch.ones(len(x))).abs()
        if self.how == "detached":
            value = value.detach()
        if self.how == "nan":
            value = value * torch.nan
        return value[:, None] if self.how == "column" else value.mean() if self.how == "number" else value


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("chance", "depends on chance"),
        ("others", "depends on the other events"),
        ("mode", "train and in eval mode"),
        ("buffer", "buffer 'count' changes"),
        ("constant", "no gradient with respect to its input"),
        ("detached", "no gradient"),
        ("nan", "NaN or infinity"),
        ("column", r"shape (16,), got (16, 1) from events of shape (16, 2)"),
        ("number", "a row for each event"),
    ],
)
def test_an_energy_that_is_none(how, said):
    assert said in refused(energy=Blind(how))


@pytest.mark.parametrize("training", [True, False])
def test_layers_that_are_refused_by_name(training):
    _, decoder = pair()
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).train(training)
    assert "encoder: BatchNorm1d ('1')" in refused(encoder=norm, decoder=decoder)
    dropped = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1)).train(training)
    assert "encoder: Dropout ('1')" in refused(encoder=dropped, decoder=decoder)
    assert "decoder: AlphaDropout" in refused(encoder=pair()[0], decoder=nn.Sequential(decoder, nn.AlphaDropout()))
    harmless = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.0), nn.LayerNorm(3)).train(training)
    normae.train(gaussian(40, 0), settings=QUICK, encoder=harmless, decoder=decoder)


def test_networks_that_do_not_fit():
    encoder, decoder = pair()
    assert "got encoder" in refused(encoder=encoder)
    assert "got decoder" in refused(decoder=decoder)
    assert "got encoder and energy" in refused(encoder=encoder, energy=Height(2, 4))
    assert "expected a torch.nn.Module, got function" in refused(energy=lambda x: x.sum(1))
    assert "encoder: cannot take an array of shape (16, 2)" in refused(encoder=nn.Linear(3, 2), decoder=decoder)
    assert "decoder: cannot take an array of shape (16, 3)" in refused(encoder=encoder, decoder=nn.Linear(2, 2))
    wide = refused(encoder=encoder, decoder=nn.Linear(3, 5))
    assert "decoder: expected events of shape (16, 2), got (16, 5)" in wide
    image = nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2)))
    assert "expected latent points of shape (16, d_z), got (16, 2, 2)" in refused(encoder=image, decoder=decoder)


def test_weights_that_cannot_be_trained():
    encoder, decoder = pair()
    assert "nothing to train" in refused(encoder=nn.Identity(), decoder=nn.Linear(2, 2))
    assert "nothing to train" in refused(encoder=deepcopy(encoder).requires_grad_(False), decoder=decoder)
    encoder[0].bias.requires_grad_(False)
    assert "'0.bias' requires no gradient" in refused(encoder=encoder, decoder=decoder)
    assert "call .float()" in refused(energy=Height(2, 4).double())
    assert "share weights" in refused(encoder=(same := nn.Linear(2, 2)), decoder=same)
    with pytest.raises(normae.InputError, match="call the module once"):
        normae.train(gaussian(40, 0), encoder=nn.LazyLinear(2), decoder=nn.Linear(2, 2))


def test_settings_that_need_what_is_not_there():
    for change, said in (
        ("sampling.replay=0.5", "replay = 1"),
        ("bayesian.prior_width=1.0", "no bayesian"),
        ("start=toy-2gauss-nae", "no start"),
        ("network.spectral_norm=true", "no spectral_norm"),
    ):
        with pytest.raises(normae.InputError, match=said):
            normae.train(gaussian(40, 0), settings=[*QUICK, change], energy=Height(2, 4))
    with pytest.raises(normae.InputError, match="shape"):
        normae.train(np.zeros((40, 2, 2)), settings=QUICK)


# --- run folders


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs with an encoder and a decoder, and with an energy that has a buffer; the models, and the modules."""
    place, networks = tmp_path_factory.mktemp("own"), {}
    encoder, decoder = pair()
    networks["pair"] = {"encoder": encoder, "decoder": decoder}
    networks["energy"] = {"energy": Blind("")}
    networks["energy"]["energy"].count.fill_(7.0)
    models = {k: normae.train(gaussian(100, 0), place / k, settings=QUICK, **n) for k, n in networks.items()}
    return place, models, networks


def test_round_trip(folders):
    place, models, networks = folders
    test = gaussian(20, 1)
    encoder, decoder = pair()
    fresh = {"pair": {"encoder": encoder, "decoder": decoder}, "energy": {"energy": Blind("")}}
    for name, modules in fresh.items():
        assert read(place / name / "config.toml").network.kind == "own"
        assert (place / name / "model.safetensors").is_file()
        model = normae.load(place / name, **modules)
        np.testing.assert_array_equal(model.log_prob(test), models[name].log_prob(test))
        np.testing.assert_array_equal(model.sample(9, feature_steps=2), models[name].sample(9, feature_steps=2))
        assert torch.equal(weights(*modules.values()), weights(*networks[name].values()))
    assert float(fresh["energy"]["energy"].count) == 7.0


def test_loading_with_other_networks(folders):
    place, _, _ = folders
    encoder, decoder = pair()
    for name, modules, said in (
        ("pair", {}, "networks of your own"),
        ("pair", {"encoder": encoder}, "got encoder"),
        ("pair", {"energy": Height(2, 4)}, "expected encoder= and decoder="),
        ("energy", {"encoder": encoder, "decoder": decoder}, "expected energy="),
        ("energy", {"energy": Height(2, 5)}, "do not belong to the networks given"),
    ):
        with pytest.raises(normae.InputError, match=said):
            normae.load(place / name, **modules)
    with pytest.raises(normae.InputError, match="has its network with it"):
        normae.load("toy-2gauss-nae", encoder=encoder, decoder=decoder)


def test_resume(folders):
    place, models, networks = folders
    with pytest.raises(normae.InputError, match="resume"):
        normae.train(gaussian(100, 0), place / "energy", settings=QUICK, **networks["energy"])
    again = normae.train(gaussian(100, 0), place / "energy", settings=QUICK, resume=True, energy=Blind(""))
    np.testing.assert_array_equal(again.score(gaussian(5, 1)), models["energy"].score(gaussian(5, 1)))


@pytest.mark.parametrize(
    "command",
    [
        "score RUN RUN/data.npz -o OUT",
        "evaluate RUN",
        "sample RUN -n 5 -o OUT",
        "export RUN --onnx -o OUT",
        "export RUN --trigger -o OUT",
        "dual RUN RUN -o OUT",
        "histogram RUN RUN/data.npz -o OUT",
        "temperature estimate RUN",
        "train RUN/config.toml -o OUT",
    ],
)
def test_commands_say_so(folders, command, tmp_path, capsys):
    run = str(folders[0] / "pair")
    out = str(tmp_path / ("out.onnx" if "--onnx" in command else "out.npz"))
    words = [word.replace("RUN", run).replace("OUT", out) for word in command.split()]
    assert invoke(*words) == 2
    assert "networks of your own" in capsys.readouterr().err


# --- as an estimator


def test_every_run_on_a_table_is_an_estimator(folders, tmp_path):
    place, models, _ = folders
    test, (encoder, decoder) = gaussian(20, 1), pair()
    fresh = {"pair": {"encoder": encoder, "decoder": decoder}, "energy": {"energy": Blind("")}}
    for name, modules in fresh.items():
        nae = normae.NormalizedAutoencoder.load(place / name, **modules)
        expected = models[name].log_prob(test)
        np.testing.assert_array_equal(nae.score_samples(test), expected)
        np.testing.assert_array_equal(nae.model_.explain(test), models[name].explain(test))
        assert nae.sample(4, random_state=0).shape == (4, 2)
        assert (nae.predict(test) == np.where(expected < nae.offset_, -1, 1)).all()
        for module in modules.values():  # of the estimator's own from here on
            nn.init.zeros_(next(module.parameters()).data)
        nae.contamination = 0.25
        nae.save(tmp_path / name)
        others = {key: made(lambda m=m: deepcopy(m)) for key, m in modules.items()}
        back = normae.NormalizedAutoencoder.load(tmp_path / name, **others)
        assert (back.offset_, back.contamination) == (nae.offset_, 0.25)
        np.testing.assert_array_equal(normae.load(tmp_path / name, **others).log_prob(test), expected)
        for again in (pickle.loads(pickle.dumps(nae)), copy(nae), deepcopy(nae), back):
            np.testing.assert_array_equal(again.score_samples(test), expected)
        assert clone(nae).get_params() == nae.get_params()
    ordinary = nae.set_params(start_iterations=5, log_z="never").fit(test)
    assert pickle.loads(pickle.dumps(ordinary)).score_samples(test).shape == (20,)


def test_an_estimator_without_the_networks_of_its_run(folders, tmp_path):
    load = normae.NormalizedAutoencoder.load
    with pytest.raises(normae.InputError, match="give them to load, in Python, as encoder= and decoder="):
        load(folders[0] / "pair")
    with pytest.raises(normae.InputError, match=r"expected energy="):
        load(folders[0] / "energy", **dict(zip(("encoder", "decoder"), pair(), strict=True)))
    encoder, decoder = (
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))),
    )
    images = np.random.default_rng(0).normal(size=(40, 2, 2))
    short = ["pretraining.iterations=1", "training.iterations=1"]
    normae.train(images, tmp_path / "images", settings=short, encoder=encoder, decoder=decoder)
    with pytest.raises(normae.InputError, match=r"expected a run on a table, got events of shape \(2, 2\)"):
        load(tmp_path / "images", encoder=encoder, decoder=decoder)
