"""The fused convolutional kernels against the reference: energies, gradients, chains, and what they refuse.

Where there is no CUDA device, Triton's interpreter runs the kernels; tests/conftest.py asks for it. A
gradient of one small image takes it a second, so that chains are compared step by step with the same random numbers;
what takes a sample is marked slow.
"""

import logging
import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from conv_chains import DEVICE, SIDE, close, generator, images, models, normal, reference_chain, sphere
from normae.errors import InputError
from normae.networks import Autoencoder, Layout, conv_fused
from normae.networks.conv_fused import FusedConvEnergy, Precision, Tuning, fused_conv_runner, why_not
from normae.networks.conv_packing import conv_shape
from normae.networks.reconstruction import ReconstructionEnergy
from normae.sampling.chain import run_chain
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.training.backends import choose_backend


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def energies(
    members: int = 1, precision: Precision = "ieee", programs: int = 0, **changes: object
) -> tuple[FusedConvEnergy, ReconstructionEnergy, Tensor]:
    """The fused energy, the reference in float64, and the weights that the fused one takes a gradient of."""
    built = models(members, **changes)
    layout = Layout.of(built[0])
    weights = layout.flatten(built).requires_grad_(True)
    reference = ReconstructionEnergy(built[0].double(), layout.views(weights.detach().double()))
    return FusedConvEnergy(built[0], layout, weights, Tuning(precision, 64, 16, 4, programs)), reference, weights


# --- energies and gradients


@pytest.mark.parametrize(
    ("precision", "changes", "tolerance"),
    [
        ("ieee", {}, 1e-4),
        ("ieee", {"output": "linear", "latent_space": "euclidean", "channels": 16, "latent": 9, "side": 10}, 1e-4),
        ("fp16", {}, 2e-2),
    ],
    ids=["paper", "other", "half"],
)
def test_energies_and_all_gradients_are_the_references(precision, changes, tolerance):
    n, side = 2 if precision == "ieee" and not changes else 1, changes.get("side", SIDE)
    fused, reference, weights = energies(precision=precision, programs=1, **changes)
    x = images(n, side)
    value, z = fused.with_latent(x)
    leaf = weights.detach().double().requires_grad_(True)
    expected, expected_z = ReconstructionEnergy(fused.autoencoder, fused.layout.views(leaf)).with_latent(x.double())
    close(value.detach(), expected.detach(), tolerance / 10)
    close(z.detach(), expected_z.detach(), tolerance / 10)
    a, b = torch.tensor([0.7, -1.3], device=DEVICE)[:n], normal(*z.shape)
    (grad,) = torch.autograd.grad((a * value).sum() + (b * z).sum(), weights)
    (expected_grad,) = torch.autograd.grad((a * expected).sum() + (b * expected_z).sum(), leaf)
    close(grad, expected_grad, tolerance)
    if precision == "ieee":
        for name, view in fused.layout.views(grad).items():
            close(view, fused.layout.views(expected_grad)[name], tolerance)
    for ours, theirs, points in ((fused, reference, x[:1]), (fused.latent(), reference.latent(), z.detach()[:1] + 0.1)):
        energy, slope = ours.value_and_grad(points)
        expected, expected_slope = theirs.value_and_grad(points.double())
        close(energy, expected, tolerance)
        close(slope, expected_slope, tolerance)


def test_small_pixels_survive_half_precision():
    """Residuals of 1e-4 pull back vectors that fp16 does not resolve unless they are scaled."""
    fused, reference, weights = energies(precision="fp16", output="linear", output_start=6e-4)
    with torch.no_grad():
        fused.layout.views(weights)["decoder.12.weight"].mul_(1e-3)
        reference.decoder_parameters["12.weight"].mul_(1e-3)
    x = 1e-3 * images(1)
    close(fused.value_and_grad(x)[1], reference.value_and_grad(x.double())[1], 2e-2)


def test_models_side_by_side_have_their_own_weights():
    fused, reference, weights = energies(2)
    x = images(2)
    value = fused(x)
    close(value.detach(), reference(x.double()), 1e-5)
    (grad,) = torch.autograd.grad(value[:1].sum(), weights)
    assert grad[0].abs().max() > 0
    assert (grad[1] == 0).all(), "the first block does not depend on the second model"


def test_programs_take_images_one_after_the_other():
    few, reference, _ = energies(programs=2)
    x = images(3)
    close(few(x).detach(), reference(x.double()), 1e-5)


def test_a_gradient_by_the_image_goes_through_autograd():
    fused, reference, _ = energies()
    x = images(2).requires_grad_(True)
    fused.autoencoder.float()
    (grad,) = torch.autograd.grad(fused(x).sum(), x)
    fused.autoencoder.double()
    close(grad, reference.value_and_grad(x.detach().double())[1], 1e-4)


# --- chains, step by step


@pytest.mark.parametrize(
    ("config", "temperature", "rejects"),
    [
        (ChainConfig(3, 1e-3, bounds=(-0.5, 1.5), clip=2e-3, clip_rule="value"), 1e-3, True),
        (
            ChainConfig(2, 1e-3, 0.1, "off", (0.0, 1.0), "clamp", clip=2e-3, clip_rule="row", anneal=True),
            1e-3,
            False,
        ),
    ],
    ids=["exact", "clamped-annealed"],
)
def test_a_chain_of_images_is_the_references(monkeypatch, config, temperature, rejects):
    fused, reference, _ = energies()
    chain = fused_conv_runner(fused, images(1), config, temperature, generator(3))
    expected = reference_chain(monkeypatch, 3, reference, images(1), config, temperature)
    assert torch.equal(chain.acceptance.cpu(), expected.acceptance.cpu())
    assert (expected.acceptance.mean() < 1) == rejects
    close(chain.position - images(1), expected.position - images(1).double(), 1e-3)
    close(chain.energy, expected.energy, 1e-4)


def test_a_latent_chain_is_the_references(monkeypatch):
    fused, reference, _ = energies()
    config, temperature, start = ChainConfig(3, 0.2, sphere="geodesic", clip=1e-4), 3e-5, sphere(1)
    chain = fused_conv_runner(fused.latent(), start, config, temperature, generator(3))
    expected = reference_chain(monkeypatch, 3, reference.latent(), start, config, temperature)
    assert torch.equal(chain.acceptance.cpu(), expected.acceptance.cpu())
    assert 0 < expected.acceptance.mean() < 1, "some steps are taken and some are not"
    close(chain.position - start, expected.position - start.double(), 1e-3)
    close(chain.energy, expected.energy, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("latent", [True, False])
def test_acceptance_and_energies_of_a_sample(latent):
    """An exact test that rejects, two models at their own temperature, other random numbers on both sides."""
    fused, reference, _ = energies(2)
    n, steps = 8, 6
    temperature = torch.tensor([1.0, 2.0], device=DEVICE).repeat_interleave(n)
    if latent:
        config, start, ours, theirs = (
            ChainConfig(steps, 0.15, sphere="geodesic"),
            sphere(2 * n),
            fused.latent(),
            reference.latent(),
        )
        temperature = 2e-5 * temperature
    else:
        config, start, ours, theirs = ChainConfig(steps, 2e-3, bounds=(-0.5, 1.5)), images(2 * n), fused, reference
        temperature = 7e-5 * temperature
    chain = fused_conv_runner(ours, start, config, temperature, [generator(3), generator(4)], members=2)
    many = start.double().repeat_interleave(8, 0)
    draws = torch.Generator(DEVICE).manual_seed(5)
    expected = run_chain(theirs, many, config, temperature.repeat_interleave(8).double(), draws, members=2)
    for k in range(2):
        share, mean = chain.acceptance[:, k].mean().item(), expected.acceptance[:, k].mean().item()
        assert 0.05 < mean < 0.97
        assert abs(share - mean) < 4 * math.sqrt(mean * (1 - mean) / (n * steps) * 1.125)
        block = expected.energy.reshape(2, -1)[k]
        error = block.std().item() / math.sqrt(n)
        assert abs(chain.energy.reshape(2, -1)[k].mean().item() - block.mean().item()) < 4 * error
    close(chain.energy, theirs(chain.position.double()), 1e-4)


@pytest.mark.slow
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


def test_a_trace_is_run_chain_s():
    fused, _, _ = energies()
    traced = fused_conv_runner(fused, images(1), ChainConfig(steps=1), 1.0, generator(), trace=1)
    assert traced.trace.shape == (1, 1, 1, SIDE, SIDE)
    assert torch.equal(traced.trace[0], traced.position)


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
    code = "import sys; sys.modules['triton'] = None; import normae.networks.conv_fused as f; print(f.triton)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "None", done.stderr
