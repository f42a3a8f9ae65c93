"""An ONNX graph under construction, and the functions that ONNX or its runtime lack.

Nodes are added one by one and named by their number; a tensor is the name of what a node gives. All numbers of a graph
have one type, float32 or float64, that of the model.
"""

import math
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper
from scipy.special import erfcx
from torch import Tensor

OPSET, IR_VERSION = 18, 8  # of 2022, so that runtimes from 1.14 on read the file
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


class Graph:
    """Nodes and constants in the order in which they were added; numbers are float32 or float64."""

    def __init__(self, dtype: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, operator: str, *inputs: str | float | np.ndarray | Tensor, **attributes: Any) -> str:
        """The name of what `operator` gives for tensors by name, and for fixed numbers in the type of the graph."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        name = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, names, [name], name=name, **attributes))
        return name

    def enter(self, name: str, dtype: Any) -> str:
        """The input `name`, which comes as `dtype`, in the type of the graph."""
        return name if np.dtype(dtype) == self.dtype else self.add("Cast", name, to=TYPES[self.dtype])

    def constant(self, values: Any, dtype: Any = None) -> str:
        """Fixed numbers, in the type of the graph unless another is asked for."""
        name = f"constant_{len(self._constants)}"
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype or self.dtype))
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, values: Any) -> str:
        """Fixed integers, such as a shape or axes."""
        return self.constant(values, np.int64)

    def reduce(self, how: str, x: str, *axes: int, keep: bool = False) -> str:
        """ "Mean", "Sum", "LogSumExp", ... over axes, which go unless they are kept with length one."""
        return self.add(f"Reduce{how}", x, self.integers(axes), keepdims=int(keep))

    def square(self, x: str) -> str:
        """x^2."""
        return self.add("Mul", x, x)

    def activation(self, kind: str, h: str) -> str:
        """a(h) for a key of `normae.networks.mlp.ACTIVATIONS`."""
        if kind in ("relu", "tanh"):
            return self.add(kind.capitalize(), h)
        if kind == "silu":
            return self.add("Mul", h, self.add("Sigmoid", h))
        erf = self._erf(self.add("Mul", h, math.sqrt(0.5)))
        return self.add("Mul", h, self.add("Mul", self.add("Add", erf, 1.0), 0.5))

    def _erf(self, x: str) -> str:
        """The error function. The runtime has it in float32 only: in float64 it is a polynomial, good to 3e-15.

        erf|x| = 1 - exp(-x^2) g(|x|) with g(x) = exp(x^2) erfc(x), which is smooth in u = 8/(4 + x) - 1.
        """
        if self.dtype == np.float32:
            return self.add("Erf", x)
        u = self.add("Sub", self.add("Div", 8.0, self.add("Add", self.add("Abs", x), 4.0)), 1.0)
        fitted = chebyshev.chebinterpolate(lambda u: erfcx(8 / np.maximum(u + 1, 1e-300) - 4), 20)
        first, *rest = chebyshev.cheb2poly(fitted)[::-1]  # powers of u, the highest first
        g = self.constant(first)
        for coefficient in rest:
            g = self.add("Add", self.add("Mul", g, u), coefficient)
        bell = self.add("Exp", self.add("Neg", self.square(x)))
        return self.add("Mul", self.add("Sign", x), self.add("Sub", 1.0, self.add("Mul", bell, g)))

    def model(
        self,
        inputs: dict[str, tuple[Any, ...]],
        outputs: dict[str, tuple[str, tuple[Any, ...]]],
        metadata: dict[str, str],
    ) -> ModelProto:
        """The checked model.

        Args:
            inputs: shapes by name; text in a shape is a dimension that the user chooses.
            outputs: the tensor and its shape, by the name that it gets.
        """
        kind = TYPES[self.dtype]
        for out, (tensor, _) in outputs.items():
            self._nodes.append(helper.make_node("Cast", [tensor], [out], name=out, to=kind))
        graph = helper.make_graph(
            self._nodes,
            "normae",
            [helper.make_tensor_value_info(n, kind, shape) for n, shape in inputs.items()],
            [helper.make_tensor_value_info(n, kind, shape) for n, (_, shape) in outputs.items()],
            self._constants,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="normae", opset_imports=opsets, ir_version=IR_VERSION)
        helper.set_model_props(model, metadata)
        checker.check_model(model, full_check=True)
        return model
