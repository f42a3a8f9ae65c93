"""Fixed-point arithmetic as an FPGA has it, bit by bit, in 64-bit integers.

A number of type fixed<W, I> is an integer r of W bits, sign included, that stands for r 2^-F with F = W - I. Narrowing
to fewer fractional bits rounds down (TRN, what a dropped wire does) or to the nearest, halves upwards (RND); what does
not fit wraps around (WRAP) or stays at the end of the range (SAT). These are the rules of ap_fixed.

A layer multiplies and adds without loss: its accumulator has the fractional bits of input and weight together, and
integer bits for the largest sum that the weights allow. Only its result is narrowed.

As an hls4ml project the network has these types for every weight, sum and result, so that hls4ml's C++ has the same
arithmetic. What is written holds no pickled model and no path of the machine it was made on.
"""

import contextlib
import io
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from normae.errors import refuse

Integers = NDArray[np.int64]
MOST_BITS = 62  # of an accumulator, so that 64-bit integers hold it
PROJECT = "trigger"
PART, CLOCK = "xcvu13p-flga2577-2-e", 5.0
"""A card of the upgraded triggers, and nanoseconds; both are entries of the project that its user changes."""


@dataclass(frozen=True)
class Fixed:
    """A signed fixed-point type.

    Args:
        width: W, all bits.
        integer: I, bits before the point, sign included; may be negative or larger than W.
        rounding: to the nearest instead of down.
        saturating: stay at the end of the range instead of wrapping around.
    """

    width: int
    integer: int
    rounding: bool = False
    saturating: bool = False

    @property
    def fraction(self) -> int:
        """F."""
        return self.width - self.integer

    @property
    def step(self) -> float:
        """The value of the last bit."""
        return 2.0**-self.fraction

    @property
    def text(self) -> str:
        """As hls4ml writes it."""
        modes = ("RND" if self.rounding else "TRN", "SAT" if self.saturating else "WRAP")
        return f"fixed<{self.width},{self.integer},{modes[0]},{modes[1]},0>"

    def of(self, values: ArrayLike) -> Integers:
        """The integers that stand for real numbers."""
        scaled = np.ldexp(np.asarray(values, dtype=np.float64), self.fraction)
        rounded = np.floor(scaled + 0.5) if self.rounding else np.floor(scaled)
        return self.fitted(np.clip(rounded, -(2.0**62), 2.0**62).astype(np.int64))

    def narrowed(self, raw: Integers, fraction: int) -> Integers:
        """The integers of this type for those with `fraction` fractional bits."""
        drop = fraction - self.fraction
        if drop <= 0:
            return self.fitted(raw << -drop)
        half = (1 << (drop - 1)) if self.rounding else 0
        return self.fitted((raw + half) >> drop)

    def fitted(self, raw: Integers) -> Integers:
        """Integers of any size within the range of the type."""
        half = 1 << (self.width - 1)
        return np.clip(raw, -half, half - 1) if self.saturating else ((raw + half) & ((1 << self.width) - 1)) - half

    def values(self, raw: Integers) -> NDArray[np.float64]:
        """The real numbers that integers stand for."""
        return np.ldexp(raw.astype(np.float64), -self.fraction)


def type_for(largest: float, width: int) -> Fixed:
    """The type of `width` bits with the most fractional bits that holds numbers up to +- `largest`."""
    return Fixed(width, math.floor(math.log2(max(largest, 2.0**-24))) + 2, rounding=True, saturating=True)


@dataclass(frozen=True)
class FixedLayer:
    """A dense layer: integers of weight, (out, in), and bias, (out,), with their types.

    The accumulator holds every sum without loss; the result is behind the rectifier where there is one.
    """

    weight: Integers
    bias: Integers
    weight_type: Fixed
    bias_type: Fixed
    accumulator: Fixed
    result: Fixed


@dataclass(frozen=True)
class FixedNetwork:
    """Dense layers with rectifiers between them."""

    input: Fixed
    layers: tuple[FixedLayer, ...]

    def __call__(self, z: NDArray[Any]) -> NDArray[np.float64]:
        """Outputs with shape (N, out) for real inputs with shape (N, in)."""
        raw, kind = self.input.of(z), self.input
        for k, layer in enumerate(self.layers):
            product = raw @ layer.weight.T
            total = layer.accumulator.narrowed(product, kind.fraction + layer.weight_type.fraction)
            total = layer.accumulator.fitted(total + layer.accumulator.narrowed(layer.bias, layer.bias_type.fraction))
            if k < len(self.layers) - 1:
                total = np.maximum(total, 0)
            raw, kind = layer.result.narrowed(total, layer.accumulator.fraction), layer.result
        return kind.values(raw)


def fixed_network(
    weights: Sequence[tuple[NDArray[Any], NDArray[Any]]], input_type: Fixed, results: Sequence[Fixed], width: int
) -> FixedNetwork:
    """The network of real weights (out, in) and biases (out,), rounded to types of `width` bits that hold them."""
    layers, kind = [], input_type
    for (weight, bias), result in zip(weights, results, strict=True):
        weight_type, bias_type = weight_types(weight, bias, width)
        w, b = weight_type.of(weight), bias_type.of(bias)
        fraction = max(kind.fraction + weight_type.fraction, bias_type.fraction)
        reach = np.abs(w).sum(1).astype(float) * 2.0 ** (kind.width - 1 - kind.fraction - weight_type.fraction)
        largest = float((reach + np.abs(bias_type.values(b))).max())
        bits = max(fraction + math.floor(math.log2(max(largest, 1e-30))) + 2, 2)
        refuse(bits > MOST_BITS, f"--bits: an accumulator would need {bits} bits; take fewer than {width}")
        layers.append(FixedLayer(w, b, weight_type, bias_type, Fixed(bits, bits - fraction), result))
        kind = result
    return FixedNetwork(input_type, tuple(layers))


def weight_types(weight: NDArray[Any], bias: NDArray[Any], width: int) -> tuple[Fixed, Fixed]:
    """Types of a layer's weights and of its biases."""
    return type_for(float(np.abs(weight).max()), width), type_for(float(np.abs(bias).max()), width)


# --- as an hls4ml project


def write_project(network: FixedNetwork, folder: Path, z: NDArray[Any]) -> NDArray[np.float64] | None:
    """Write the project to `folder`; what hls4ml's C++ gives for z (N, d), with shape (N,), None without a compiler."""
    import hls4ml

    model, shape, last = nn.Sequential(), (z.shape[1],), len(network.layers) - 1
    precisions = {"input_1": {"result": network.input.text}}  # of each layer by hls4ml's names
    for k, layer in enumerate(network.layers):
        dense = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], dtype=torch.float64)
        with torch.no_grad():
            dense.weight.copy_(torch.from_numpy(layer.weight_type.values(layer.weight)))
            dense.bias.copy_(torch.from_numpy(layer.bias_type.values(layer.bias)))
        model.add_module(f"dense{k}", dense)
        kinds = {"weight": layer.weight_type, "bias": layer.bias_type, "accum": layer.accumulator}
        kinds["result"] = layer.result if k == last else layer.accumulator
        precisions[f"dense{k}"] = {part: kind.text for part, kind in kinds.items()}
        if k < last:
            model.add_module(f"relu{k}", nn.ReLU())
            precisions[f"relu{k}"] = {"result": layer.result.text}
    with contextlib.redirect_stdout(io.StringIO()):  # hls4ml tells every layer
        config = hls4ml.utils.config_from_pytorch_model(
            model, shape, granularity="name", backend="Vitis", default_precision=network.input.text
        )
        for name, types in precisions.items():
            config["LayerName"][name]["Precision"].update(types)
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
    settings = folder / "hls4ml_config.yml"  # the project names no folder, since it may be taken anywhere
    settings.write_text(settings.read_text(encoding="utf-8").replace(str(folder), "."), encoding="utf-8")
    for library in folder.rglob("*.so"):  # build_lib.sh compiles the emulation again
        library.unlink()
    return outputs
