"""The fused convolutional kernels against the reference: energies, gradients, chains, and what they refuse.

Where there is no CUDA device, Triton's interpreter runs the kernels; it must be asked for before triton is imported.
"""

import logging
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from normae.energy import ReconstructionEnergy
from normae.errors import InputError
from normae.networks import Autoencoder, Layout, NetworkConfig, build_autoencoder
from normae.sampling import conv_fused
from normae.sampling.chain import run_chain
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.sampling.conv_fused import FusedConvEnergy, Precision, Tuning, fused_conv_runner, why_not
from normae.sampling.conv_packing import conv_shape
from normae.training.backends import choose_backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = 8


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def models(members: int, side: int = SIDE, seed: int = 0, **changes: object) -> list[Autoencoder]:
    """Networks with weights of order one, so that no layer is idle, and slopes that can be told apart."""
    settings: dict = {"kind": "conv", "latent": 3, "hidden": (20,), "activation": "prelu", "latent_space": "sphere"}
    config = NetworkConfig(**(settings | {"output": "sigmoid"} | changes))
    draw = torch.Generator().manual_seed(seed)
    built = [build_autoencoder(config, (1, side, side), draw).to(DEVICE) for _ in range(members)]
    with torch.no_grad():
        for model in built:
            for k, layer in enumerate(m for m in model.modules() if isinstance(m, nn.PReLU)):
                layer.weight.fill_(0.1 + 0.05 * k)
            for p in model.parameters():
                if p.ndim > 1:
                    p.mul_(1.5)
    return built


def energies(
    members: int = 1, precision: Precision = "ieee", tuning: Tuning | None = None, **changes: object
) -> tuple[FusedConvEnergy, ReconstructionEnergy, Tensor]:
    """The fused energy, the reference in float64, and the weights that the fused one takes a gradient of."""
    built = models(members, **changes)
    layout = Layout.of(built[0])
    weights = layout.flatten(built).requires_grad_(True)
    chosen = tuning or Tuning(precision, 32, 16, 4, 3)
    reference = ReconstructionEnergy(built[0].double(), layout.views(weights.detach().double()))
    return FusedConvEnergy(built[0], layout, weights, chosen), reference, weights


def images(n: int, side: int = SIDE, seed: int = 1) -> Tensor:
    return torch.rand(n, 1, side, side, generator=generator(seed), device=DEVICE)


def sphere(n: int, d: int = 3, seed: int = 2) -> Tensor:
    return nn.functional.normalize(torch.randn(n, d, generator=generator(seed), device=DEVICE), dim=1)


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert (ours.double() - theirs).norm() < tolerance * theirs.norm()


# --- energies and gradients


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"output": "linear", "latent_space": "euclidean"},
        {"channels": 16, "latent": 9, "hidden": (12,)},
        {"side": 10},
    ],
    ids=["paper", "linear-flat", "16-channels", "side-10"],
)
def test_energies_and_all_gradients_are_the_references(changes):
    side = changes.get("side", SIDE)
    fused, reference, weights = energies(**changes)
    x = images(2, side)
    value, z = fused.with_latent(x)
    leaf = weights.detach().double().requires_grad_(True)
    expected, expected_z = ReconstructionEnergy(fused.autoencoder, fused.layout.views(leaf)).with_latent(x.double())
    close(value.detach(), expected.detach(), 1e-5)
    close(z.detach(), expected_z.detach(), 1e-5)
    a, b = torch.tensor([0.7, -1.3], device=DEVICE), torch.randn_like(z)
    (grad,) = torch.autograd.grad((a * value).sum() + (b * z).sum(), weights)
    (expected_grad,) = torch.autograd.grad((a * expected).sum() + (b * expected_z).sum(), leaf)
    for name, view in fused.layout.views(grad).items():
        close(view, fused.layout.views(expected_grad)[name], 1e-4)
    for ours, theirs, points in ((fused, reference, x), (fused.latent(), reference.latent(), z.detach())):
        energy, slope = ours.value_and_grad(points)
        expected, expected_slope = theirs.value_and_grad(points.double())
        close(energy, expected, 1e-5)
        close(slope, expected_slope, 1e-4)


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_rounded_products_are_close(precision):
    fused, reference, weights = energies(precision=precision)
    x = images(3)
    value, z = fused.with_latent(x)
    close(value.detach(), reference(x.double()), 2e-3)
    leaf = weights.detach().double().requires_grad_(True)
    expected = ReconstructionEnergy(fused.autoencoder, fused.layout.views(leaf))(x.double())
    close(*(torch.autograd.grad(e.sum(), w)[0] for e, w in ((value, weights), (expected, leaf))), 2e-2)
    for ours, theirs, points in ((fused, reference, x), (fused.latent(), reference.latent(), z.detach())):
        close(ours.value_and_grad(points)[1], theirs.value_and_grad(points.double())[1], 2e-2)


def test_small_pixels_survive_half_precision():
    """Residuals of 1e-4 pull back vectors that fp16 does not resolve unless they are scaled."""
    fused, reference, _ = energies(precision="fp16", output="linear", output_start=6e-4)
    last = fused.decoder_parameters["12.weight"]
    with torch.no_grad():
        last.mul_(1e-3)
        reference.decoder_parameters["12.weight"].mul_(1e-3)
    x = 1e-3 * images(2)
    close(fused.value_and_grad(x)[1], reference.value_and_grad(x.double())[1], 1e-2)


def test_models_side_by_side_have_their_own_weights():
    fused, reference, weights = energies(2)
    x = images(4)
    value = fused(x)
    close(value.detach(), reference(x.double()), 1e-5)
    (grad,) = torch.autograd.grad(value[:2].sum(), weights)
    assert grad[0].abs().max() > 0
    assert (grad[1] == 0).all(), "the first block does not depend on the second model"


def test_the_layout_of_programs_does_not_matter():
    x, expected = images(3), None
    for tuning in (Tuning("ieee", 16, 16, 4, 1), Tuning("ieee", 64, 8, 4, 2), Tuning("ieee", 32, 32, 4, 0)):
        fused, _, weights = energies(tuning=tuning)
        value = fused(x)
        both = torch.cat([value, torch.autograd.grad(value.sum(), weights)[0].flatten()])
        expected = both if expected is None else expected
        torch.testing.assert_close(both, expected, rtol=1e-4, atol=1e-5)


def test_a_gradient_by_the_image_goes_through_autograd():
    fused, reference, _ = energies()
    x = images(2).requires_grad_(True)
    fused.autoencoder.float()
    (grad,) = torch.autograd.grad(fused(x).sum(), x)
    fused.autoencoder.double()
    close(grad, reference.value_and_grad(x.detach().double())[1], 1e-4)


# --- chains


@pytest.mark.parametrize(
    "config",
    [
        ChainConfig(steps=3, step_size=2.0, noise=0.0, metropolis="off"),
        ChainConfig(steps=2, step_size=2.0, noise=0.0, metropolis="off", clip=1e-3, clip_rule="norm"),
        ChainConfig(steps=2, step_size=2.0, noise=0.0, metropolis="off", clip=1e-3, clip_rule="row"),
        ChainConfig(steps=2, step_size=2.0, noise=0.0, metropolis="off", clip=3e-4, clip_rule="value"),
        ChainConfig(
            steps=2, step_size=9.0, noise=0.0, metropolis="off", bounds=(0.2, 0.7), bounds_rule="clamp", anneal=True
        ),
    ],
    ids=["plain", "clip-norm", "clip-row", "clip-value", "clamp"],
)
def test_descent_without_noise_is_the_references(config):
    fused, reference, _ = energies(2)
    x, temperature = images(4), torch.tensor([0.5, 1.0, 1.5, 2.0], device=DEVICE)
    chain = fused_conv_runner(fused, x, config, temperature, generator(), members=2)
    expected = run_chain(reference, x.double(), config, temperature.double(), generator(), members=2)
    close(chain.position - x, expected.position - x.double(), 1e-3)
    close(chain.energy, expected.energy, 1e-5)
    assert chain.acceptance.shape == (config.steps, 2)
    assert (chain.acceptance == 1).all()


@pytest.mark.parametrize("rule", ["geodesic", "project"])
def test_latent_descent_without_noise_is_the_references(rule):
    fused, reference, _ = energies()
    exact = "exact" if rule == "geodesic" else "off"
    noise = 1e-4 if exact == "exact" else 0.0  # a test needs some
    config = ChainConfig(steps=3, step_size=0.05, noise=noise, metropolis="off", sphere=rule, clip=0.05)
    z = sphere(3)
    chain = fused_conv_runner(fused.latent(), z, config, 0.1, generator())
    expected = run_chain(reference.latent(), z.double(), config, 0.1, generator())
    close(chain.position - z, expected.position - z.double(), 2e-2 if noise else 1e-3)
    torch.testing.assert_close(chain.position.norm(dim=1), torch.ones(3, device=DEVICE))


@pytest.mark.parametrize("latent", [True, False])
def test_acceptance_and_energies_are_the_references(latent):
    """An exact test that rejects a third of the steps, with different random numbers on both sides."""
    fused, reference, _ = energies()
    n, steps = 16, 6
    if latent:
        config, temperature, start = ChainConfig(steps=steps, step_size=0.15, sphere="geodesic"), 2e-3, sphere(n)
        ours, theirs = fused.latent(), reference.latent()
    else:
        config, temperature, start = ChainConfig(steps=steps, step_size=2e-3, bounds=(-0.5, 1.5)), 1e-3, images(n)
        ours, theirs = fused, reference
    chain = fused_conv_runner(ours, start, config, temperature, generator(3))
    many = start.double().repeat(8, *[1] * (start.ndim - 1))
    expected = run_chain(theirs, many, config, temperature, generator(4))
    share, mean = chain.acceptance.mean().item(), expected.acceptance.mean().item()
    assert 0.1 < mean < 0.95
    assert abs(share - mean) < 4 * math.sqrt(mean * (1 - mean) / (n * steps) * 1.125)
    error = expected.energy.std().item() / math.sqrt(n)
    assert abs(chain.energy.mean().item() - expected.energy.mean().item()) < 4 * error
    close(chain.energy, theirs(chain.position.double()), 1e-4)


def test_noise_has_its_width_and_shrinks():
    """Where the drift is nothing, a chain without a test is a sum of kicks."""
    fused, _, _ = energies()
    config = ChainConfig(steps=3, step_size=1e-12, noise=0.3, metropolis="off", anneal=True)
    x = images(12)
    moved = fused_conv_runner(fused, x, config, 1.0, generator(5)).position - x
    variance = 0.09 * (1 + 1 / 4 + 1 / 9)
    assert abs(moved.mean()) < 4 * math.sqrt(variance / moved.numel())
    assert abs(moved.var() / variance - 1) < 4 * math.sqrt(2 / moved.numel())
    assert len(moved.flatten().unique()) > 0.99 * moved.numel(), "no number twice"


def test_numbers_follow_the_generator_and_not_the_programs():
    config = ChainConfig(steps=1, step_size=1e-3)

    def run(seed: int, programs: int) -> Tensor:
        fused, _, _ = energies(tuning=Tuning("ieee", 32, 16, 4, programs))
        return fused_conv_runner(fused.latent(), sphere(3), config, 1.0, generator(seed)).position

    first = run(0, 1)
    torch.testing.assert_close(first, run(0, 3))
    assert not torch.isclose(first, run(1, 1)).all(1).any()


def test_no_steps_and_a_trace():
    fused, _, _ = energies()
    chain = fused_conv_runner(fused, images(2), ChainConfig(steps=0), 1.0, generator())
    assert torch.equal(chain.position, images(2))
    assert chain.acceptance.shape == (0, 1)
    traced = fused_conv_runner(fused, images(2), ChainConfig(steps=2), 1.0, generator(), trace=2)
    assert traced.trace.shape == (2, 2, 1, SIDE, SIDE)


# --- refusals


def test_why_not(monkeypatch):
    (good,) = models(1)
    assert why_not(good) is None
    assert why_not(models(1, channels=4)[0]) == "4 channels are not 8, 16 or 32"
    other = Autoencoder(good.encoder, nn.Sequential(*good.decoder, nn.ReLU()), 3)
    assert why_not(other) == "encoder and decoder are not the convolutional ones of networks.conv"
    assert conv_shape(Autoencoder(nn.Flatten(), good.decoder, 3)) is None
    layout = Layout.of(other)
    with pytest.raises(InputError, match="cannot serve: encoder and decoder"):
        FusedConvEnergy(other, layout, layout.flatten([other]))
    monkeypatch.setattr(conv_fused, "triton", None)
    assert why_not(good) == "triton is not installed"


def test_wrong_events_are_named():
    fused, _, _ = energies(2)
    with pytest.raises(InputError, match=r"2 equal blocks of events of shape \(1, 8, 8\), got \(3, 1, 8, 8\)"):
        fused(images(3))
    with pytest.raises(InputError, match=r"got \(4, 1, 10, 10\)"):
        fused.value_and_grad(images(4, 10))


@pytest.mark.parametrize(
    ("channels", "device", "name", "message"),
    [
        (4, "cuda", "graph", "4 channels are not 8, 16 or 32; using 'graph'"),
        (8, "cpu", "reference", "needs a CUDA device; using 'reference'"),
    ],
)
def test_a_backend_that_cannot_serve_says_why_once(caplog, channels, device, name, message):
    (model,) = models(1, channels=channels)
    with caplog.at_level(logging.WARNING):
        backend = choose_backend("fused", model, SamplingConfig(), torch.device(device))
    assert backend.name == name
    assert len(caplog.records) == 1
    assert message in caplog.text


def test_import_without_triton():
    code = "import sys; sys.modules['triton'] = None; import normae.sampling.conv_fused as f; print(f.triton)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "None", done.stderr
