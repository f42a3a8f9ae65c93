"""The CUDA kernels against the reference: on a device where there is one, otherwise on the CPU.

There the kernels' own source is compiled by g++, and the threads of a block are fibers. What is emulated: the products
of the tensor cores (`ldmatrix` and `mma`), shuffles, barriers and conversions.
"""

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import normae
from conv_chains import DEVICE, close, generator, images, models, normal, reference_chain, sphere
from normae.networks import Autoencoder, Layout, conv_cuda, conv_fused
from normae.networks.conv_fused import FusedConvEnergy, _launch, assembled
from normae.networks.conv_packing import conv_shape, pack, packing, unpacking
from normae.networks.mlp_chain import _seeds
from normae.networks.reconstruction import ReconstructionEnergy
from normae.sampling.config import ChainConfig

pytestmark = pytest.mark.skipif(DEVICE == "cpu" and shutil.which("g++") is None, reason="needs g++ or a CUDA device")
LARGEST = 227 * 1024
"""Bytes of shared memory that a block can have on compute capability 9."""
MULTIPROCESSOR, RESERVED = 228 * 1024, 1024
"""Bytes of shared memory of a multiprocessor there, and what the system takes of it for each block."""
NOTHING = [ctypes.c_void_p()]
EMULATION = Path(__file__).parent / "emulation"
KERNELS = Path(normae.__file__).parent / "networks"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulation")

    @cache
    def build(defines: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
        out = folder / f"{abs(hash(defines))}.so"
        given = [f"-D{key}={value}" for key, value in defines]
        command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-DEMULATE", *given]
        subprocess.run(
            [*command, f"-I{KERNELS}", f"-I{EMULATION}", str(EMULATION / "emulate.cc"), "-o", str(out)], check=True
        )
        return ctypes.CDLL(str(out))

    return build


def run(
    compiled, built: list[Autoencoder], start: Tensor, config: ChainConfig, temperature: float, latent: bool, order=0
):
    """As `conv_fused._launch`: end points, energies, gradients and steps that were taken."""
    layout, shape = Layout.of(built[0]), conv_shape(built[0])
    if DEVICE == "cuda":
        energy = FusedConvEnergy(built[0], layout, layout.flatten(built))
        assert conv_fused._cuda_kernel(energy, "chain", conv_cuda.chain_defines(shape, config, latent), start)
        on = energy.latent() if latent else energy
        return *_launch(on, start, config, temperature, config.step_size, _seeds(generator(3), start.device)), 0
    full = pack(layout.flatten(built), packing(layout, shape)).contiguous()
    n, members = len(start) // len(built), len(built)
    position, gradient, energy = torch.empty_like(start), torch.empty_like(start), torch.empty(len(start))
    accepted = torch.zeros(config.steps, members, n, dtype=torch.int32)
    t, s, seeds = torch.tensor([temperature]), torch.tensor([config.step_size]), _seeds(generator(3), start.device)
    tensors = (start.contiguous(), position, energy, gradient, accepted, seeds, t, s, full.half(), full)
    counts = (n, config.steps, 0, 0, 0, full.stride(0))
    values = conv_cuda.values(tensors, counts, conv_cuda.chain_numbers(config))
    size = emulate(compiled(conv_cuda.chain_defines(shape, config, latent)), values, n, members, order)
    return position, energy, gradient, accepted, size


def emulate(library: ctypes.CDLL, values: list, blocks: int, members: int, order: int = 0) -> int:
    """Run all blocks, threads in an order of `emulate.cc`; the shared memory of one."""
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    return library.emulate(pointers, blocks, members, order)


def weight_gradients(
    compiled, model: Autoencoder, layout: Layout, weights: Tensor, x: Tensor, a: Tensor, b: Tensor, order: int = 0
):
    """d/dweights of sum_i (a_i E_i + b_i z_i) of two models, as `conv_fused._gradients`, by two blocks."""
    shape = conv_shape(model)
    if DEVICE == "cuda":
        return conv_fused._gradients(FusedConvEnergy(model, layout, weights), x, a, b)
    full = pack(weights, packing(layout, shape)).contiguous()
    out, vectors = torch.zeros(4, shape.gathered), torch.empty(2, 3, 2 * shape.small + 4 * shape.hp + 2 * shape.zp)
    tensors = (x, a, b, out, vectors, full.half(), full)
    values = conv_cuda.values(tensors, (3, full.stride(0), out.stride(0)))
    emulate(compiled(conv_cuda.gradient_defines(shape)), values, 2, 2, order)
    return assembled(out, vectors, shape, unpacking(layout, shape))


def reference(built: list[Autoencoder]) -> ReconstructionEnergy:
    layout = Layout.of(built[0])
    return ReconstructionEnergy(built[0].double(), layout.views(layout.flatten(built).double()))


@pytest.mark.parametrize(
    "changes",
    [{}, {"output": "linear", "latent_space": "euclidean", "latent": 9, "side": 16, "hidden": (200,)}],
    ids=["paper", "other"],
)
@pytest.mark.parametrize("latent", [False, True])
def test_energies_and_gradients_are_the_references(compiled, latent, changes):
    """Two models side by side, the energies as good as half precision is."""
    built = models(2, **changes)
    start = sphere(4, changes.get("latent", 3)) if latent else images(4, changes.get("side", 8))
    _, energy, gradient, _, _ = run(compiled, built, start, ChainConfig(steps=0), 1.0, latent)
    theirs = reference(built).latent() if latent else reference(built)
    value, slope = theirs.value_and_grad(start.double())
    close(energy, value, 2e-3)
    close(gradient, slope, 2e-2)


def test_the_paper_s_network_with_trained_weights(compiled):
    """On a jet: small pixels, and vectors that must be scaled to be seen; all of it fits into a multiprocessor."""
    model = normae.load("jets-qcd-ae-paper").autoencoder.to(DEVICE)
    x = torch.zeros(1, 1, 40, 40, device=DEVICE)
    x[0, 0, 18:24, 19:22] = images(1)[0, 0, :6, :3] / 10
    _, energy, gradient, _, size = run(compiled, [model], x, ChainConfig(steps=0), 1.0, False)
    assert size <= LARGEST
    value, slope = reference([model]).value_and_grad(x.double())
    close(energy, value, 2e-3)
    close(gradient, slope, 5e-2)
    if DEVICE == "cpu":
        assert emulate(compiled(conv_cuda.gradient_defines(conv_shape(model))), NOTHING, 0, 0) <= LARGEST
        latent = conv_cuda.chain_defines(conv_shape(model), ChainConfig(steps=0), True)
        largest = max(size, emulate(compiled(latent), NOTHING, 0, 0))
        assert 2 * (largest + RESERVED) <= MULTIPROCESSOR, "two blocks of a chain"


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [({}, 5e-3), ({"output": "linear", "latent_space": "euclidean", "side": 16}, 4e-2)],
    ids=["paper", "other"],
)
def test_gradients_of_the_weights_are_the_references(compiled, changes, tolerance):
    """Of energies and latent points, two models, three images each for two blocks.

    In the second case half precision puts a few values on the other side of a kink, as it does in Triton's kernels.
    """
    built = models(2, **changes)
    layout = Layout.of(built[0])
    weights, x = layout.flatten(built), images(6, changes.get("side", 8))
    a = torch.tensor([0.7, -1.3, 0.4, 1.0, 0.2, -0.5], device=DEVICE)
    b = normal(6, 3)
    found = weight_gradients(compiled, built[0], layout, weights, x, a, b)
    leaf = weights.double().requires_grad_(True)
    value, z = ReconstructionEnergy(built[0].double(), layout.views(leaf)).with_latent(x.double())
    (expected,) = torch.autograd.grad((a * value).sum() + (b * z).sum(), leaf)
    close(found, expected, tolerance / 2)
    for name, view in layout.views(found).items():
        close(view, layout.views(expected)[name], tolerance)


@pytest.mark.parametrize(
    ("config", "temperature", "rejects"),
    [
        (ChainConfig(4, 1e-3, bounds=(-0.5, 1.5), clip=2e-3, clip_rule="value"), 1e-3, True),
        (ChainConfig(3, 1e-3, 0.1, "off", (0.0, 1.0), "clamp", clip=2e-3, clip_rule="row", anneal=True), 1e-3, False),
        (ChainConfig(3, 1e-4, clip=3e-3, clip_rule="norm"), 1e-2, False),
    ],
    ids=["exact", "clamped-annealed", "norm"],
)
def test_a_chain_of_images_is_the_references(compiled, monkeypatch, config, temperature, rejects):
    built, start = models(1), images(2)
    position, energy, _, accepted, _ = run(compiled, built, start, config, temperature, False)
    expected = reference_chain(monkeypatch, 3, reference(built), start, config, temperature)
    share = accepted.double().mean(2).cpu()
    assert torch.equal(share, expected.acceptance.cpu())
    assert (share.mean() < 1) == rejects
    close(position - start, expected.position - start.double(), 1e-2)
    close(energy, expected.energy, 2e-3)


@pytest.mark.parametrize("rule", ["geodesic", "project"])
def test_a_latent_chain_is_the_references(compiled, monkeypatch, rule):
    built, start = models(1), sphere(2)
    config, temperature = ChainConfig(6, 0.2, sphere=rule, clip=1e-4), 3e-5
    if rule == "project":
        config = ChainConfig(6, 1e-3, 0.1, "off", sphere=rule, clip=1e-4)
    position, energy, _, accepted, _ = run(compiled, built, start, config, temperature, True)
    expected = reference_chain(monkeypatch, 3, reference(built).latent(), start, config, temperature)
    share = accepted.double().mean(2).cpu()
    assert torch.equal(share, expected.acceptance.cpu())
    assert (0 < share.mean() < 1) == (rule == "geodesic"), "some steps are taken and some are not"
    close(position - start, expected.position - start.double(), 1e-2)
    close(energy, expected.energy, 5e-3)


@pytest.mark.skipif(DEVICE == "cuda", reason="an emulated block's threads run in a chosen order, a device's do not")
@pytest.mark.parametrize("kind", ["images", "latent", "weights"])
def test_the_order_of_threads_between_barriers_changes_nothing(compiled, kind):
    """Bit for bit, on an image with more pixels than threads and an odd number of tiles: no barrier is missing."""
    built = models(2, side=24)
    layout = Layout.of(built[0])
    a, b = torch.tensor([0.7, -1.3, 0.4, 1.0, 0.2, -0.5]), normal(6, 3)
    config = ChainConfig(1, 1e-3, bounds=(-0.5, 1.5), clip=2e-3, clip_rule="norm")

    def result(order: int) -> list[Tensor]:
        if kind == "weights":
            return [weight_gradients(compiled, built[0], layout, layout.flatten(built), images(6, 24), a, b, order)]
        start = sphere(2) if kind == "latent" else images(2, 24)
        chosen = ChainConfig(1, 0.2, sphere="geodesic", clip=1e-4) if kind == "latent" else config
        return [*run(compiled, built, start, chosen, 1e-3, kind == "latent", order)[:4]]

    expected = result(0)
    for order in (1, 2):
        assert all(torch.equal(x, y) for x, y in zip(result(order), expected, strict=True)), order
