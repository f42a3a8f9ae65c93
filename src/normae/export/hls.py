"""A fixed-point network as an hls4ml project, and its C++ emulation.

The types of every weight, sum and result are ours, so that hls4ml's C++ has the arithmetic of `FixedNetwork`. What it
writes holds no pickled model and no path of the machine it was made on.
"""

import contextlib
import io
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normae.export.fixed import FixedNetwork

PROJECT = "trigger"
PART, CLOCK = "xcvu13p-flga2577-2-e", 5.0
"""A card of the upgraded triggers, and nanoseconds; both are entries of the project that its user changes."""


def torch_network(network: FixedNetwork) -> nn.Sequential:
    """The layers with the rounded weights, as hls4ml reads them."""
    layers: list[tuple[str, nn.Module]] = []
    for k, layer in enumerate(network.layers):
        dense = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], dtype=torch.float64)
        with torch.no_grad():
            dense.weight.copy_(torch.from_numpy(layer.weight_type.values(layer.weight)))
            dense.bias.copy_(torch.from_numpy(layer.bias_type.values(layer.bias)))
        layers.append((f"dense{k}", dense))
        if k < len(network.layers) - 1:
            layers.append((f"relu{k}", nn.ReLU()))
    return nn.Sequential(OrderedDict(layers))


def precisions(network: FixedNetwork) -> dict[str, dict[str, str]]:
    """Of each layer by hls4ml's names."""
    found: dict[str, dict[str, str]] = {"input_1": {"result": network.input.text}}
    last = len(network.layers) - 1
    for k, layer in enumerate(network.layers):
        result = layer.result if k == last else layer.accumulator
        found[f"dense{k}"] = {
            "weight": layer.weight_type.text,
            "bias": layer.bias_type.text,
            "accum": layer.accumulator.text,
            "result": result.text,
        }
        if k < last:
            found[f"relu{k}"] = {"result": layer.result.text}
    return found


def write_project(network: FixedNetwork, folder: Path, z: NDArray[Any]) -> NDArray[np.float64] | None:
    """Write the project to `folder`, and its outputs for inputs z with shape (N, d).

    Returns:
        The outputs of hls4ml's C++ with shape (N,); None without a compiler.
    """
    import hls4ml

    with contextlib.redirect_stdout(io.StringIO()):  # hls4ml tells every layer
        model = torch_network(network)
        shape = (z.shape[1],)
        config = hls4ml.utils.config_from_pytorch_model(
            model, shape, granularity="name", backend="Vitis", default_precision=network.input.text
        )
        for name, kinds in precisions(network).items():
            config["LayerName"][name]["Precision"].update(kinds)
        graph = hls4ml.converters.convert_from_pytorch_model(
            model, hls_config=config, output_dir=str(folder), project_name=PROJECT, backend="Vitis",
            io_type="io_parallel", part=PART, clock_period=CLOCK,
        )  # fmt: skip
        graph.config.config.pop("PytorchModel", None)  # it would be written as a pickle
        graph.config.config["InputShape"] = list(shape)
        outputs = None
        if shutil.which("g++") is None:
            graph.write()
        else:
            graph.compile()
            outputs = np.asarray(graph.predict(np.ascontiguousarray(z, dtype=np.float64)), np.float64).reshape(-1)
    _forget_path(folder)
    return outputs


def _forget_path(folder: Path) -> None:
    """The project may be taken anywhere: it names no folder, and build_lib.sh compiles the emulation again."""
    settings = folder / "hls4ml_config.yml"
    settings.write_text(settings.read_text(encoding="utf-8").replace(str(folder), "."), encoding="utf-8")
    for library in folder.rglob("*.so"):
        library.unlink()
