"""The CUDA kernels against the reference: on a device where there is one, otherwise on the CPU.

There the kernels' own source is compiled by g++, and the threads of a block are fibers. What is emulated: the products
of the tensor cores (`ldmatrix` and `mma`), shuffles, barriers and conversions.
"""

import ctypes
import logging
import shutil
import subprocess
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normae
from conv_chains import DEVICE, SIDE, close, generator, images, models, normal, philox, reference_chain, sphere
from normae.errors import InputError
from normae.networks import Autoencoder, Layout, conv_cuda
from normae.networks.conv_cuda import (
    CudaSourceError,
    FusedConvEnergy,
    chain_defines,
    fused_conv_runner,
    launch_chain,
    network_defines,
)
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.scoring_energy import ScoringEnergy, conv_shape
from normae.sampling.chain import keys
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.training.backends import choose_backend

pytestmark = pytest.mark.skipif(DEVICE == "cpu" and shutil.which("g++") is None, reason="needs g++ or a CUDA device")
LARGEST = 227 * 1024
"""Bytes of shared memory that a block can have on compute capability 9."""
MULTIPROCESSOR, RESERVED = 228 * 1024, 1024
"""Bytes of shared memory of a multiprocessor there, and what the system takes of it for each block."""
EMULATION = Path(__file__).parent / "emulation"
emulated_only = pytest.mark.skipif(DEVICE == "cuda", reason="of the emulation")


class Emulated:
    """A kernel on the CPU, in place of `conv_cuda.Kernel`."""

    order = 0
    """In which threads run between two barriers, see emulate.cc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.shared = library.emulate(None, 0, 0, 0)

    def launch(self, grid: tuple[int, int], threads: int, arguments: list) -> None:
        assert threads == 512
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        self._library.emulate(pointers, *grid, Emulated.order)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulation")

    @cache
    def build(name: str, defines: conv_cuda.Defines, _: int = 0) -> Emulated:
        out = folder / f"{name}-{abs(hash(defines))}.so"
        given = [f"-D{key}={value}" for key, value in (*defines, ("ENTRY", name), ("SOURCE", f"<conv_{name}.cu>"))]
        command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-DEMULATE", *given]
        places = [f"-I{files('normae.networks')}", f"-I{EMULATION}"]
        subprocess.run([*command, *places, str(EMULATION / "emulate.cc"), "-o", str(out)], check=True)
        return Emulated(ctypes.CDLL(str(out)))

    return build


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch, compiled):
    conv_cuda._why_not_device.cache_clear()
    if DEVICE == "cpu":
        monkeypatch.setattr(conv_cuda, "kernel", compiled)
        monkeypatch.setattr(conv_cuda, "multiprocessors", lambda device: 2)


def energies(built: list[Autoencoder]) -> tuple[FusedConvEnergy, ReconstructionEnergy, Tensor]:
    """The fused energy, the reference in float64, and the weights that the fused one takes a gradient of."""
    layout = Layout.of(built[0])
    weights = layout.flatten(built).requires_grad_(True)
    reference = ReconstructionEnergy(built[0].double(), layout.views(weights.detach().double()))
    return FusedConvEnergy(built[0], layout, weights), reference, weights


def at_rest(energy, start: Tensor) -> tuple[Tensor, Tensor]:
    """Energies and gradients, as a chain sees them."""
    _, value, _, grad = launch_chain(energy, start, ChainConfig(steps=0), 1.0, 1.0, keys(generator(), start.device))
    return value, grad


OTHER = {"output": "linear", "latent_space": "euclidean", "latent": 9, "side": 16, "hidden": (200,)}


@pytest.mark.parametrize("changes", [{}, OTHER], ids=["paper", "other"])
@pytest.mark.parametrize("latent", [False, True])
def test_energies_and_gradients_of_a_chain_are_the_references(latent, changes):
    """Two models side by side, the energies as good as half precision is."""
    fused, reference, _ = energies(models(2, **changes))
    start = sphere(4, changes.get("latent", 3)) if latent else images(4, changes.get("side", SIDE))
    energy, gradient = at_rest(fused.latent() if latent else fused, start)
    value, slope = (reference.latent() if latent else reference).value_and_grad(start.double())
    close(energy, value, 2e-3)
    close(gradient, slope, 2e-2)


@pytest.mark.parametrize("changes", [{}, OTHER, {"side": 24}], ids=["paper", "other", "more pixels than threads"])
def test_energies_and_latent_points_are_the_references(changes):
    """Two models side by side, more images than blocks: a block takes one after the other."""
    fused, reference, _ = energies(models(2, **changes))
    x = images(10, changes.get("side", SIDE))
    value, z = fused.with_latent(x)
    expected, expected_z = reference.with_latent(x.double())
    close(value.detach(), expected, 2e-3)
    close(z.detach(), expected_z, 2e-3)
    assert value.dtype == z.dtype == torch.float32
    assert torch.equal(fused(x).detach(), value.detach())


def test_the_paper_s_network_with_trained_weights():
    """On a jet: small pixels, and vectors that must be scaled to be seen; all of it fits into a multiprocessor."""
    model = normae.load("jets-qcd-ae-paper").autoencoder.to(DEVICE)
    shape = conv_shape(model)
    x = torch.zeros(1, 1, 40, 40, device=DEVICE)
    x[0, 0, 18:24, 19:22] = images(1)[0, 0, :6, :3] / 10
    fused, reference, _ = energies([model])
    energy, gradient = at_rest(fused, x)
    value, slope = reference.value_and_grad(x.double())
    close(energy, value, 2e-3)
    close(gradient, slope, 5e-2)
    close(fused(x).detach(), value, 2e-3)
    names = (("energies", network_defines(shape)), ("chain", chain_defines(shape, ChainConfig(steps=0), True)))
    assert conv_cuda.kernel("gradient", network_defines(shape, gradient=True), 0).shared <= LARGEST
    for name, defines in names:
        assert 2 * (conv_cuda.kernel(name, defines, 0).shared + RESERVED) <= MULTIPROCESSOR, f"two blocks of {name}"


def test_small_pixels_survive_half_precision():
    """Residuals of 1e-4 pull back vectors that half precision does not resolve unless they are scaled."""
    (model,) = models(1, output="linear", output_start=6e-4)
    with torch.no_grad():
        model.decoder[12].weight.mul_(1e-3)
    fused, reference, _ = energies([model])
    x = 1e-3 * images(1)
    close(at_rest(fused, x)[1], reference.value_and_grad(x.double())[1], 2e-2)


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [({}, 5e-3), ({"output": "linear", "latent_space": "euclidean", "side": 16}, 4e-2)],
    ids=["paper", "other"],
)
def test_gradients_of_the_weights_are_the_references(changes, tolerance):
    """Of energies and latent points, two models, three images each for two blocks.

    In the second case half precision puts a few values on the other side of a kink.
    """
    fused, _, weights = energies(models(2, **changes))
    x = images(6, changes.get("side", SIDE))
    a, b = torch.tensor([0.7, -1.3, 0.4, 1.0, 0.2, -0.5], device=DEVICE), normal(6, 3)
    value, z = fused.with_latent(x)
    (found,) = torch.autograd.grad((a * value).sum() + (b * z).sum(), weights)
    leaf = weights.detach().double().requires_grad_(True)
    value, z = ReconstructionEnergy(fused.autoencoder, fused.layout.views(leaf)).with_latent(x.double())
    (expected,) = torch.autograd.grad((a * value).sum() + (b * z).sum(), leaf)
    close(found, expected, tolerance / 2)
    for name, view in fused.layout.views(found).items():
        close(view, fused.layout.views(expected)[name], tolerance)
    value = fused(x)
    (first,) = torch.autograd.grad(value[:3].sum(), weights)
    assert (first[1] == 0).all(), "the first block does not depend on the second model"


def test_a_gradient_by_the_image_is_the_plain_network_s():
    fused, reference, _ = energies(models(1))
    x = images(2).double().requires_grad_(True)
    plain = FusedConvEnergy(fused.autoencoder, fused.layout, fused.weights.detach().double())
    (grad,) = torch.autograd.grad(plain(x).sum(), x)
    close(grad, reference.value_and_grad(x.detach())[1], 1e-12)


@pytest.mark.parametrize(
    ("config", "temperature", "rejects"),
    [
        (ChainConfig(4, 1e-3, bounds=(-0.5, 1.5), clip=2e-3, clip_rule="value"), 1e-3, True),
        (ChainConfig(3, 1e-3, 0.1, "off", (0.0, 1.0), "clamp", clip=2e-3, clip_rule="row", anneal=True), 1e-3, False),
        (ChainConfig(3, 1e-4, clip=3e-3, clip_rule="norm"), 1e-2, False),
    ],
    ids=["exact", "clamped-annealed", "norm"],
)
def test_a_chain_of_images_is_the_references(monkeypatch, config, temperature, rejects):
    (fused, reference, _), start = energies(models(1)), images(2)
    chain = fused_conv_runner(fused, start, config, temperature, generator(3))
    expected = reference_chain(monkeypatch, 3, reference, start, config, temperature)
    assert torch.equal(chain.acceptance.cpu(), expected.acceptance.cpu())
    assert (chain.acceptance.mean() < 1) == rejects
    close(chain.position - start, expected.position - start.double(), 1e-2)
    close(chain.energy, expected.energy, 2e-3)


@pytest.mark.parametrize("rule", ["geodesic", "project"])
def test_a_latent_chain_is_the_references(monkeypatch, rule):
    (fused, reference, _), start = energies(models(1)), sphere(2)
    config, temperature = ChainConfig(6, 0.2, sphere=rule, clip=1e-4), 3e-5
    if rule == "project":
        config = ChainConfig(6, 1e-3, 0.1, "off", sphere=rule, clip=1e-4)
    chain = fused_conv_runner(fused.latent(), start, config, temperature, generator(3))
    expected = reference_chain(monkeypatch, 3, reference.latent(), start, config, temperature)
    assert torch.equal(chain.acceptance.cpu(), expected.acceptance.cpu())
    assert (0 < chain.acceptance.mean() < 1) == (rule == "geodesic"), "some steps are taken and some are not"
    close(chain.position - start, expected.position - start.double(), 1e-2)
    close(chain.energy, expected.energy, 5e-3)


def test_models_have_their_own_temperature_step_and_numbers():
    """A chain of two models is the two chains of one."""
    built, start, config = models(2), images(4), ChainConfig(2, 1e-3, bounds=(-0.5, 1.5))
    t, s = torch.tensor([1e-3, 2e-3], device=DEVICE), torch.tensor([1e-3, 5e-4], device=DEVICE)
    each = [t.repeat_interleave(2), [generator(3), generator(4)], s.repeat_interleave(2)]
    both = fused_conv_runner(energies(built)[0], start, config, *each, members=2)
    (alone, _, _) = energies([models(2)[0]])
    first = fused_conv_runner(alone, start[:2], config, t[0], generator(3), s[0])
    assert torch.equal(both.position[:2], first.position)
    assert torch.equal(both.acceptance[:, :1], first.acceptance)
    assert not torch.equal(both.position[:2] - start[:2], both.position[2:] - start[2:])


def test_the_random_numbers_are_philox_s():
    """The known answer of the authors' library for the key and the counter zero."""
    words = philox(0, np.zeros(1), 0, 0)
    assert [int(word[0]) for word in words] == [0x6627E8D5, 0xE169C58D]


@emulated_only
@pytest.mark.parametrize("kind", ["images", "latent", "energies", "weights"])
def test_the_order_of_threads_between_barriers_changes_nothing(kind, monkeypatch):
    """Bit for bit, on an image with more pixels than threads and an odd number of tiles: no barrier is missing."""
    (fused, _, weights), x = energies(models(2, side=24)), images(6, 24)
    config = ChainConfig(1, 1e-3, bounds=(-0.5, 1.5), clip=2e-3, clip_rule="norm")

    def result(order: int) -> list[Tensor]:
        monkeypatch.setattr(Emulated, "order", order)
        if kind == "energies":
            return [y.detach() for y in fused.with_latent(x)]
        if kind == "weights":
            return [*torch.autograd.grad(fused(x).sum(), weights)]
        on, start = (fused.latent(), sphere(2)) if kind == "latent" else (fused, images(2, 24))
        chosen = ChainConfig(1, 0.2, sphere="geodesic", clip=1e-4) if kind == "latent" else config
        return [*launch_chain(on, start, chosen, 1e-3, chosen.step_size, keys(generator(3), start.device))]

    expected = result(0)
    for order in (1, 2):
        assert all(torch.equal(x, y) for x, y in zip(result(order), expected, strict=True)), order


def test_a_trace_is_run_chain_s():
    (model,) = models(1)
    layout = Layout.of(model)
    fused = FusedConvEnergy(model, layout, layout.flatten([model]))
    traced = fused_conv_runner(fused, images(1), ChainConfig(steps=1), 1.0, generator(), trace=1)
    assert traced.trace.shape == (1, 1, 1, SIDE, SIDE)
    assert torch.equal(traced.trace[0], traced.position)


# --- refusals


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"channels": 4}, "4 channels are not 8"),
        ({"side": 10}, "the side of 10 pixels is not a multiple of 8"),
        ({"hidden": (300,)}, "300 hidden or 3 latent dimensions are more than 256 or 32"),
    ],
)
def test_why_not(changes, reason):
    assert conv_cuda.why_not(models(1, **changes)[0], torch.device(DEVICE), "energies") == reason


def test_other_networks_are_refused():
    (good,) = models(1)
    other = Autoencoder(good.encoder, nn.Sequential(*good.decoder, nn.ReLU()), 3)
    reason = "encoder and decoder are not the convolutional ones of networks.autoencoder"
    assert conv_cuda.why_not(other, torch.device(DEVICE), "energies") == reason
    assert conv_shape(Autoencoder(nn.Flatten(), good.decoder, 3)) is None
    layout = Layout.of(other)
    with pytest.raises(InputError, match="cannot be used: encoder and decoder"):
        FusedConvEnergy(other, layout, layout.flatten([other]))


def test_wrong_events_are_named():
    (fused, _, _) = energies(models(2))
    with pytest.raises(InputError, match=r"2 equal blocks of events of shape \(1, 8, 8\), got \(3, 1, 8, 8\)"):
        fused(images(3))
    with pytest.raises(InputError, match=r"got \(4, 1, 10, 10\)"):
        at_rest(fused, images(4, 10))
    with pytest.raises(InputError, match=r"of shape \(3,\), got \(4, 5\)"):
        at_rest(fused.latent(), sphere(4, 5))


def too_small(name, *_):
    raise CudaSourceError("could not have 229376 bytes of shared memory: invalid argument")


@pytest.mark.parametrize(
    ("channels", "device", "name", "message"),
    [
        (4, "cuda", "graph", "4 channels are not 8; using 'graph'"),
        (8, "cuda", "graph", "could not have 229376 bytes of shared memory: invalid argument; using 'graph'"),
        (8, "cpu", "reference", "needs a CUDA device; using 'reference'"),
    ],
)
def test_a_backend_that_cannot_serve_says_why_once(monkeypatch, caplog, channels, device, name, message):
    monkeypatch.setattr(conv_cuda, "kernel", too_small)
    (model,) = models(1, channels=channels)
    with caplog.at_level(logging.WARNING):
        backend = choose_backend("fused", model, SamplingConfig(), torch.device(device))
    assert backend.name == name
    assert len(caplog.records) == 1
    assert message in caplog.text


def test_a_backend_that_serves():
    backend = choose_backend("auto", models(1)[0], SamplingConfig(), torch.device("cuda"))
    assert (backend.name, backend.kernels, backend.runner) == ("fused", FusedConvEnergy, fused_conv_runner)


@pytest.mark.gpu
def test_a_process_that_has_nothing_on_the_device_yet_gets_the_kernels():
    code = """
import torch
from normae.config import read
from normae.runs.load import untrained
from normae.training.backends import choose_backend
run = read("jets-paper-qcd-nae", [])
print(choose_backend("auto", untrained(run, (1, 40, 40)), run.sampling, torch.device("cuda")).name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fused"], done.stderr


@pytest.mark.gpu
def test_scores_on_a_device_take_the_kernel_or_the_layers(monkeypatch, caplog):
    (model,), x = models(1), images(5)
    plain = ReconstructionEnergy(model)(x).detach()
    fused = ScoringEnergy(model)(x)
    close(fused.double(), plain.double(), 2e-3)
    assert not torch.equal(fused, plain)
    conv_cuda._why_not_device.cache_clear()
    monkeypatch.setattr(conv_cuda, "kernel", too_small)
    with caplog.at_level(logging.WARNING):
        layers = ScoringEnergy(model)
    assert "scoring with the layers one by one" in caplog.text
    close(layers(x).double(), plain.double(), 1e-5)


@pytest.mark.gpu
def test_a_replayed_graph_draws_new_numbers():
    (model,), g = models(1), torch.Generator(DEVICE).manual_seed(0)
    layout, config, start = Layout.of(model), ChainConfig(2, 1e-3), images(4)
    energy = FusedConvEnergy(model, layout, layout.flatten([model]))
    fused_conv_runner(energy, start, config, 1.0, g)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        chain = fused_conv_runner(energy, start, config, 1.0, g)
    ends = []
    for _ in range(2):
        graph.replay()
        ends.append(chain.position.clone())
    assert not torch.isclose(ends[0], ends[1]).all()
