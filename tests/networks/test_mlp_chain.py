"""The fused chain against the reference: energies and gradients, stationary moments, acceptance, random numbers.

Where there is no CUDA device, Triton's interpreter runs the kernels; tests/conftest.py asks for it.
"""

import math
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scipy.stats import truncnorm
from torch import Tensor, nn

pytest.importorskip("triton")

from normae.energy import autograd_value_and_grad
from normae.errors import InputError
from normae.networks import mlp_chain as fused
from normae.networks.autoencoder import Autoencoder, NetworkConfig, build_mlp_autoencoder
from normae.networks.mlp import MLP
from normae.networks.mlp_chain import Precision, launch_chain, why_not
from normae.networks.reconstruction import LatentEnergy, Layout, LocalEnergy, ReconstructionEnergy
from normae.sampling.chain import Chain, run_chain
from normae.sampling.config import ChainConfig, SamplingConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDE = 32 if torch.cuda.is_available() else 1024
"""Samples per program: the interpreter's time goes by programs."""
Target = ReconstructionEnergy | LatentEnergy


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def fused_runner(*chain: Any, precision: Precision = "fp16", block: int = 16, **how: Any) -> Chain:
    """`mlp_chain.fused_runner` with another arithmetic and other blocks."""
    return run_chain(*chain, **how, launch=partial(launch_chain, precision=precision, block=block))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def networks(
    members: int, hidden: tuple[int, ...] = (16, 16), d: int = 2, dz: int = 3, activation: str = "relu"
) -> ReconstructionEnergy:
    """Random autoencoders whose weights are views of one tensor."""
    config = NetworkConfig(latent=dz, hidden=hidden, activation=activation)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(members + d)
    models = [build_mlp_autoencoder(config, (d,), draw) for _ in range(members)]
    layout = Layout.of(models[0])
    return ReconstructionEnergy(models[0], layout.views(layout.flatten(models).to(DEVICE)))


def points(n: int, d: int, seed: int = 1) -> Tensor:
    return torch.randn(n, d, generator=generator(seed), device=DEVICE)


def gaussian(mean: tuple[float, ...], hidden: int = 2) -> ReconstructionEnergy:
    """An autoencoder that always answers `mean`: E = |x - mean|^2/d, a Gaussian of variance T d/2."""
    energy = networks(1, (16,) * hidden, d=len(mean))
    last = f"layers.{hidden}"
    energy.decoder_parameters[f"{last}.weight"].zero_()
    energy.decoder_parameters[f"{last}.bias"].copy_(torch.tensor(mean))
    return energy


def linear_decoder(matrix: Tensor) -> LatentEnergy:
    """f_d(z) = A z, made of relu(z) - relu(-z), and an encoder that answers 0: E~(z) = |A z|^2/d."""
    d, dz = matrix.shape
    energy = networks(1, (16, 16), d=d, dz=dz)
    eye = torch.eye(dz, device=DEVICE)
    for parameters in (energy.encoder_parameters, energy.decoder_parameters):
        for name, p in parameters.items():
            if name.endswith("bias") or parameters is energy.decoder_parameters or name.startswith("layers.2"):
                p.zero_()
    energy.decoder_parameters["layers.0.weight"][0, : 2 * dz] = torch.cat([eye, -eye])
    energy.decoder_parameters["layers.1.weight"][0].copy_(torch.eye(16))
    energy.decoder_parameters["layers.2.weight"][0, :, : 2 * dz] = torch.cat([matrix, -matrix], 1)
    return energy.latent()


# --- energies and gradients


def fused_value_and_grad(target: Target, x: Tensor, precision: Precision, size: float = 1.0) -> tuple[Tensor, Tensor]:
    """Energies of a chain without steps, and gradients of one that goes a step of `size` down."""
    members = (target.energy if isinstance(target, LatentEnergy) else target).members

    def chain(steps: int) -> Chain:
        config = ChainConfig(steps=steps, step_size=size, noise=0.0, metropolis="off")
        return fused_runner(target, x, config, 1.0, generator(), members=members, precision=precision, block=32)

    return chain(0).energy, (x - chain(1).position) / size


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
@pytest.mark.parametrize(("hidden", "d", "dz"), [((16, 16), 2, 3), ((16, 16, 16), 3, 1), ((32,), 5, 2)])
def test_energy_and_gradient_are_the_references(activation: str, hidden: tuple[int, ...], d: int, dz: int) -> None:
    """One model or two, so that each activation and each shape is met by both."""
    members = 1 + (len(hidden) + (activation == "silu")) % 2
    energy = networks(members, hidden, d, dz, activation)
    for target, dimension in ((energy, d), (energy.latent(), dz)):
        x = points(members * 20, dimension)
        value, grad = fused_value_and_grad(target, x, "ieee")
        expected, expected_grad = target.value_and_grad(x)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("resident", [True, False])
def test_rounded_products_are_close(resident: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "RESIDENT_BYTES", fused.RESIDENT_BYTES if resident else 0)
    energy = networks(1, (16, 16, 16), activation="silu")
    x = 2 * points(32, 2)
    value, grad = fused_value_and_grad(energy, x, "fp16")
    expected, expected_grad = energy.value_and_grad(x)
    torch.testing.assert_close(value, expected, rtol=2e-3, atol=1e-4)
    torch.testing.assert_close(grad, expected_grad, rtol=2e-3, atol=1e-3)


def test_the_largest_width() -> None:
    energy = networks(1, (256, 256))
    x = points(16, 2)
    value, grad = fused_value_and_grad(energy, x, "fp16")
    expected, expected_grad = energy.value_and_grad(x)
    torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-3, atol=1e-3)


def test_small_vectors_survive_half_precision() -> None:
    """Events of order 1e-3 give vectors of order 1e-7, which fp16 does not resolve unless they are scaled."""
    energy = networks(1, (16, 16, 16))
    for kind in ("weight", "bias"):
        energy.decoder_parameters[f"layers.3.{kind}"].mul_(1e-3)
    z = points(32, 3)
    grad = fused_value_and_grad(energy.latent(), z, "fp16", size=1e6)[1]
    expected = energy.latent().value_and_grad(z)[1]
    assert (grad - expected).norm() < 5e-3 * expected.norm()


def test_weights_that_stand_apart_are_packed() -> None:
    config = NetworkConfig(latent=2, hidden=(16, 16))
    model = build_mlp_autoencoder(config, (3,), torch.Generator().manual_seed(5)).to(DEVICE)
    energy, x = ReconstructionEnergy(model), points(16, 3)
    value, grad = fused_value_and_grad(energy, x, "ieee")
    expected, expected_grad = energy.value_and_grad(x)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-6)


# --- deterministic chains, step by step


@pytest.mark.parametrize(
    "config",
    [
        ChainConfig(steps=5, step_size=0.05, noise=0.0, metropolis="off"),
        ChainConfig(steps=5, step_size=0.05, noise=0.0, metropolis="off", clip=0.2, clip_rule="norm"),
        ChainConfig(steps=5, step_size=0.05, noise=0.0, metropolis="off", clip=0.1, clip_rule="value"),
        ChainConfig(steps=5, step_size=0.5, noise=0.0, metropolis="off", bounds=(-0.3, 0.4), bounds_rule="clamp"),
    ],
    ids=["plain", "clip-norm", "clip-value", "clamp"],
)
def test_descent_without_noise_is_the_references(config: ChainConfig) -> None:
    energy = networks(2)
    x, temperature = points(32, 2), torch.linspace(0.5, 2, 32, device=DEVICE)
    chain = fused_runner(energy, x, config, temperature, generator(), members=2, precision="ieee")
    expected = run_chain(energy, x, config, temperature, generator(), members=2)
    torch.testing.assert_close(chain.position, expected.position, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(chain.energy, expected.energy, rtol=1e-4, atol=1e-6)
    assert chain.acceptance.shape == (5, 2)
    assert (chain.acceptance == 1).all()


# --- moments of known targets


def assert_moments(x: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Mean and variance of Gaussian columns within four standard errors."""
    n = len(x)
    assert ((x.mean(0) - mean).abs() < 4 * (variance / n).sqrt()).all()
    assert ((x.var(0) - variance).abs() < 4 * variance * math.sqrt(2 / (n - 1))).all()


def test_moments_in_feature_space() -> None:
    mean, temperature = (0.5, -1.5), 0.3
    energy, n = gaussian(mean), 1024
    config = ChainConfig(steps=20, step_size=0.15)
    start = torch.full((n, 2), 2.0, device=DEVICE)
    chain = fused_runner(energy, start, config, temperature, generator(), precision="ieee", block=WIDE)
    variance = torch.full((2,), temperature, device=DEVICE)
    assert_moments(chain.position, torch.tensor(mean, device=DEVICE), variance)
    torch.testing.assert_close(chain.energy, energy(chain.position), rtol=1e-4, atol=1e-6)
    reference = run_chain(energy, start, config, temperature, generator(1))
    share, expected = chain.acceptance[2:].mean(), reference.acceptance[2:].mean()
    assert abs(share - expected) < 4 * math.sqrt(2 * expected * (1 - expected) / (18 * n))
    assert 0.5 < share < 0.95


def test_moments_in_latent_space() -> None:
    matrix = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], device=DEVICE)
    config = ChainConfig(steps=25, step_size=0.12)
    chain = fused_runner(
        linear_decoder(matrix),
        torch.ones(1024, 2, device=DEVICE),
        config,
        0.5,
        generator(3),
        precision="ieee",
        block=WIDE,
    )
    variance = 0.5 * 3 / 2 / torch.tensor([1.0, 4.0], device=DEVICE)
    assert_moments(chain.position, torch.zeros(2, device=DEVICE), variance)


def test_two_models_at_their_own_temperature_and_step() -> None:
    n, low, high = 512, 0.2, 0.8
    energy = networks(2, (16, 16))
    energy.decoder_parameters["layers.2.weight"].zero_()
    energy.decoder_parameters["layers.2.bias"].copy_(torch.tensor([[1.0, 2.0], [-3.0, 0.0]]))
    temperature = torch.tensor([low, high], device=DEVICE).repeat_interleave(n)
    size = temperature / 2
    start = energy.decoder_parameters["layers.2.bias"].repeat_interleave(n, 0) + 0.1
    generators = [generator(4), generator(5)]
    config = ChainConfig(steps=15)
    chain = fused_runner(
        energy, start, config, temperature, generators, step_size=size, members=2, precision="ieee", block=WIDE
    )
    for k, t in enumerate((low, high)):
        mean = energy.decoder_parameters["layers.2.bias"][k]
        assert_moments(chain.position[k * n : (k + 1) * n], mean, torch.full((2,), t, device=DEVICE))
    assert chain.acceptance.shape == (15, 2)
    assert chain.acceptance.dtype == torch.float64
    assert not torch.equal(chain.acceptance[:, 0], chain.acceptance[:, 1])


def test_bounds_truncate_the_gaussian() -> None:
    low, high, sigma = -0.5, 1.0, math.sqrt(0.3)
    config = ChainConfig(steps=30, step_size=0.1, bounds=(low, high))
    chain = fused_runner(
        gaussian((0.4, 0.4)),
        torch.zeros(1024, 2, device=DEVICE),
        config,
        0.3,
        generator(6),
        precision="ieee",
        block=WIDE,
    )
    assert ((chain.position >= low) & (chain.position <= high)).all()
    exact = truncnorm((low - 0.4) / sigma, (high - 0.4) / sigma, loc=0.4, scale=sigma)
    error = exact.std() / math.sqrt(chain.position.numel())
    assert abs(float(chain.position.mean()) - exact.mean()) < 4 * error
    assert abs(float(chain.position.var()) - exact.var()) < 4 * exact.var() * math.sqrt(2 / chain.position.numel())


def test_annealed_noise_without_the_test() -> None:
    temperature, n, steps = 0.3, 1024, 6
    config = ChainConfig(steps=steps, step_size=0.06, noise=0.5, metropolis="off", anneal=True)
    chain = fused_runner(
        gaussian((0.0, 0.0)),
        torch.zeros(n, 2, device=DEVICE),
        config,
        temperature,
        generator(7),
        precision="ieee",
        block=WIDE,
    )
    variance = 0.0
    for t in range(steps):
        variance = (1 - 0.06 / temperature) ** 2 * variance + (0.5 / (1 + t)) ** 2
    assert_moments(chain.position, torch.zeros(2, device=DEVICE), torch.full((2,), variance, device=DEVICE))
    assert (chain.acceptance == 1).all()


@pytest.mark.parametrize("latent", [False, True])
def test_acceptance_is_the_references(latent: bool) -> None:
    energy = networks(1, (16, 16, 16), activation="silu")
    for p in (*energy.encoder_parameters.values(), *energy.decoder_parameters.values()):
        p.mul_(2)
    target: Target = energy.latent() if latent else energy
    start = points(512, 3 if latent else 2)
    config = ChainConfig(steps=8, step_size=0.3, bounds=(-2.0, 2.5))
    start = start.clamp(-2, 2.5)
    ours = fused_runner(target, start, config, 0.2, generator(8), precision="ieee", block=WIDE).acceptance.mean()
    theirs = run_chain(target, start, config, 0.2, generator(9)).acceptance.mean()
    assert abs(ours - theirs) < 4 * math.sqrt(2 * theirs * (1 - theirs) / (8 * 512))
    assert 0.2 < ours < 0.95


# --- random numbers, shapes and refusals


def test_numbers_follow_the_generator_and_not_the_blocks() -> None:
    energy, start, config = networks(1), points(40, 2), ChainConfig(steps=2, step_size=0.1)

    def run(seed: int, block: int) -> Tensor:
        return fused_runner(energy, start, config, 1.0, generator(seed), precision="ieee", block=block).position

    first = run(0, 16)
    assert torch.equal(first, run(0, 16))
    torch.testing.assert_close(first, run(0, 64))
    assert not torch.isclose(first, run(1, 16)).all(1).any()
    assert len(first.unique(dim=0)) == 40


def test_a_generator_goes_on() -> None:
    energy, start, config, g = networks(1), points(16, 2), ChainConfig(steps=1, step_size=0.1), generator()
    a, b = (fused_runner(energy, start, config, 1.0, g, precision="ieee").position for _ in range(2))
    assert not torch.isclose(a, b).all(1).any()


@pytest.mark.gpu
def test_a_replayed_graph_draws_new_numbers() -> None:
    energy, start, config, g = networks(1), points(64, 2), ChainConfig(steps=3, step_size=0.1), generator()
    fused_runner(energy, start, config, 1.0, g)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        chain = fused_runner(energy, start, config, 1.0, g)
    ends = []
    for _ in range(2):
        graph.replay()
        ends.append(chain.position.clone())
    assert not torch.isclose(ends[0], ends[1]).all(1).any()


def test_no_steps_and_a_trace() -> None:
    energy, start = networks(1), points(16, 2)
    chain = fused_runner(energy, start, ChainConfig(steps=0), 1.0, generator())
    assert torch.equal(chain.position, start)
    assert chain.acceptance.shape == (0, 1)
    assert chain.trace is None
    traced = fused_runner(energy, start, ChainConfig(steps=4), 1.0, generator(), trace=2)
    assert traced.trace.shape == (2, 16, 2)


def model(encoder: nn.Module, decoder: nn.Module, sphere: bool = False) -> Autoencoder:
    return Autoencoder(encoder, decoder, 2, sphere)


def mlp(*sizes: int, activation: str = "relu") -> MLP:
    return MLP(sizes, activation, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: model(mlp(3, 32, 2), mlp(2, 32, 3)), None),
        (lambda: model(nn.Linear(3, 2), mlp(2, 32, 3)), "not both MLPs"),
        (lambda: model(mlp(3, 32, 2), mlp(2, 32, 3), sphere=True), "sphere"),
        (lambda: model(mlp(3, 32, 2, activation="tanh"), mlp(2, 32, 3)), "tanh"),
        (lambda: model(mlp(3, 2), mlp(2, 32, 3)), "no hidden layer"),
        (lambda: model(mlp(3, 32, 2), mlp(2, 16, 3)), r"\[16, 32\] differ"),
        (lambda: model(mlp(3, 48, 2), mlp(2, 48, 3)), "power of two"),
        (lambda: model(mlp(3, 512, 2), mlp(2, 512, 3)), "between 16 and 256"),
        (lambda: model(mlp(3, 32, 2), mlp(3, 32, 3)), "mirror"),
        (lambda: model(mlp(17, 32, 2), mlp(2, 32, 17)), "more than 16"),
    ],
)
def test_why_not(build: Callable[[], Autoencoder], reason: str | None) -> None:
    answer = why_not(build(), ChainConfig())
    assert answer is None if reason is None else re.search(reason, str(answer))


def test_chains_on_a_sphere_are_refused() -> None:
    sampling = SamplingConfig(latent=ChainConfig(sphere="geodesic"))
    assert "sphere" in str(why_not(model(mlp(3, 32, 2), mlp(2, 32, 3)), sampling.latent, sampling.feature))
    with pytest.raises(InputError, match="sphere"):
        fused_runner(networks(1), points(16, 2), ChainConfig(sphere="project"), 1.0, generator())


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    energy = networks(2)
    with pytest.raises(InputError, match=r"2 equal blocks of points of shape \(2,\), got \(16, 3\)"):
        fused_runner(energy, points(16, 3), ChainConfig(), 1.0, generator(), members=2)
    with pytest.raises(InputError, match="3 of each for 3 blocks"):
        fused_runner(energy, points(18, 2), ChainConfig(), 1.0, generator(), members=3)
    with pytest.raises(InputError, match="one number or 16"):
        fused_runner(energy, points(16, 2), ChainConfig(), torch.ones(8), generator(), members=2)
    monkeypatch.setattr(fused, "triton", None)
    assert why_not(energy.autoencoder, ChainConfig()) == "triton is not installed"
    with pytest.raises(InputError, match="triton is not installed"):
        fused_runner(energy, points(16, 2), ChainConfig(), 1.0, generator(), members=2)


def test_import_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import normae.networks.mlp_chain as f; print(f.triton)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "None", done.stderr


# --- the mean over local noise


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("precision", ["ieee", "fp16"])
def test_the_mean_over_local_noise_is_the_references(members: int, precision: Precision) -> None:
    plain = networks(members, (16, 16, 16), 2, 3, "silu")
    parameters = {f"encoder.{name}": p for name, p in plain.encoder_parameters.items()}
    parameters |= {f"decoder.{name}": p for name, p in plain.decoder_parameters.items()}
    widths = {name: 0.3 * p.abs() + 0.1 for name, p in parameters.items() if name.startswith("decoder.layers.3.")}
    energy = LocalEnergy(plain.autoencoder, parameters, widths)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if precision == "ieee" else {"rtol": 5e-3, "atol": 5e-3}
    for target, dimension in ((energy, 2), (energy.latent(), 3)):
        x = points(members * 20, dimension)
        value, grad = fused_value_and_grad(target, x, precision)
        expected, expected_grad = autograd_value_and_grad(target, x)
        torch.testing.assert_close(value, expected, **tolerance)
        torch.testing.assert_close(grad, expected_grad, **tolerance)
    assert (energy(points(members * 20, 2)) > plain(points(members * 20, 2))).all()
