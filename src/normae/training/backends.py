"""How an iteration is executed: plainly, with explicit pullbacks, captured in a CUDA graph; by one process or several.

The mathematics is the trainer's in every case. A backend that cannot be used falls back, and one log line says why.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from normae.errors import InputError, decided, team
from normae.networks.autoencoder import Autoencoder
from normae.networks.mlp import MLP
from normae.networks.own import EnergyNetwork, OwnEnergy
from normae.networks.reconstruction import Layout, ReconstructionEnergy, conv_shape
from normae.sampling.chain import Runner, run_chain
from normae.sampling.config import SamplingConfig

log = logging.getLogger(__name__)

Iterate = Callable[[], None]


@dataclass(frozen=True)
class Backend:
    """A way to execute iterations.

    Args:
        name: as in `sampling.backend`; all but "reference" have explicit pullbacks, where the network has them.
        graph: the whole iteration in a CUDA graph.
        runner: what runs a chain.
        kernels: makes an energy from an architecture, its layout and weights (S, P), where it is not the plain one.
    """

    name: str
    graph: bool = False
    runner: Runner = run_chain
    kernels: Callable[[Autoencoder, Layout, Tensor], ReconstructionEnergy] | None = None

    def energy(self, architecture: Autoencoder, layout: Layout, weights: Tensor) -> ReconstructionEnergy:
        """The energy of S models with weights (S, P)."""
        if self.kernels is not None:
            return self.kernels(architecture, layout, weights)
        if isinstance(architecture, EnergyNetwork):
            return OwnEnergy(architecture, layout.views(weights))
        return ReconstructionEnergy(architecture, layout.views(weights), explicit=self.name != "reference")


def capture_graph(
    iterate: Iterate, tensors: Callable[[], dict[str, Tensor]], generators: Sequence[torch.Generator]
) -> Iterate:
    """Record one iteration, which changes what `tensors` gives, live, and draws from the generators.

    The warm-up that CUDA asks for changes the state, so the state is put back after it.
    """
    before = {name: tensor.clone() for name, tensor in tensors().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            iterate()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        iterate()
    put_back(tensors(), generators, before)
    return graph.replay


def put_back(tensors: Mapping[str, Tensor], generators: Sequence[torch.Generator], state: Mapping[str, Tensor]) -> None:
    """Copy `state` into live tensors of the same names and shapes; "generator.K" is the state of generator K."""
    for k, generator in enumerate(generators):
        generator.set_state(state[f"generator.{k}"].cpu())
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not name.startswith("generator."):
                tensor.copy_(state[name])


def choose_backend(name: str, architecture: Autoencoder, sampling: SamplingConfig, device: torch.device) -> Backend:
    """The backend called `name`, or the fastest that serves for "auto"."""
    mlps = isinstance(architecture.encoder, MLP) and isinstance(architecture.decoder, MLP)
    reference, graph = Backend("reference"), Backend("graph", graph=True)
    explicit = Backend("explicit") if mlps else reference
    if name == "reference":
        return reference
    if name in ("graph", "fused") and device.type != "cuda" and architecture.base is None:
        log.warning("sampling.backend = %r needs a CUDA device; using %r", name, explicit.name)
    # a base chooses between rows, which no graph of a card can hold
    if name == "explicit" or device.type != "cuda" or architecture.base is not None:
        return explicit
    if name == "graph":
        return graph
    if name not in ("auto", "fused"):
        raise InputError(f"sampling.backend: expected auto, reference, explicit, graph or fused, got {name!r}")
    fused = _fused(architecture, sampling, device)
    if isinstance(fused, Backend):
        return fused
    log.warning("sampling.backend = %r cannot be used: %s; using 'graph'", name, fused)
    return graph


def _fused(architecture: Autoencoder, sampling: SamplingConfig, device: torch.device) -> Backend | str:
    """The chain in one kernel, for convolutions with energies and gradients too; or why it cannot be used."""
    if conv_shape(architecture) is None:
        from normae.networks import mlp_chain

        reason = mlp_chain.why_not(architecture, sampling.latent, sampling.feature)
        return reason or Backend("fused", graph=True, runner=mlp_chain.fused_runner)
    from normae.networks import conv_cuda

    runner, kernels = conv_cuda.fused_conv_runner, conv_cuda.FusedConvEnergy
    reason = conv_cuda.why_not(architecture, device, "gradient")
    return reason or Backend("fused", graph=True, runner=runner, kernels=kernels)


# --- on several processes


@dataclass(frozen=True)
class Group:
    """The processes of one training; by itself one process, to which there is nothing to say.

    Several are all those of `torch.distributed`, which must be initialized. Each has its part of the events and of the
    batch, and its own chains, buffer and generators. Their gradients are averaged, and since they began with the same
    weights and make the same update, the weights stay the same, bit for bit. This is the arithmetic of
    DistributedDataParallel, whose wrapper has nothing to add: all weights are one tensor already.
    """

    rank: int = 0
    size: int = 1

    def named(self, name: str) -> str:
        """The random stream `name` of this process; the first one has the streams of a training by itself."""
        return name if self.rank == 0 else f"{name}/process/{self.rank}"

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of all processes' tensors."""
        if self.size == 1:
            return tensor
        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
        return tensor.div_(self.size)

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return flag
        votes = torch.tensor(int(flag))
        dist.all_reduce(votes)
        return bool(votes > 0)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, in their order."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return parts


@contextmanager
def processes() -> Iterator[Group]:
    """The processes that torchrun started, connected for as long as the context lasts, or this one alone."""
    if dist.is_available() and dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size())
        return
    rank, size = team()
    if size < 2:
        if os.environ.get("WORLD_SIZE", "1") != "1" or os.environ.get("RANK", "0") != "0":
            decided("RANK and WORLD_SIZE are set, but not by torchrun: this process trains alone")
        yield Group()
        return
    if rank == 0:
        decided(f"one training on {size} processes, as torchrun says")
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
