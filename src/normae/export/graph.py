"""An ONNX graph under construction, and the functions that ONNX or its runtime lack.

Nodes are added one by one and named by their number; a tensor is the name of what a node gives. All numbers of a graph
have one type, float32 or float64, that of the model.
"""

from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper
from scipy.special import erfcx

OPSET, IR_VERSION = 18, 8
"""Of 2022, so that runtimes from 1.14 on read the file."""
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


class Graph:
    """Nodes and constants in the order in which they were added.

    Args:
        dtype: float32 or float64.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of what `operator` gives for the tensors `inputs`."""
        name = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def enter(self, name: str, dtype: Any) -> str:
        """The input `name`, which comes as `dtype`, in the type of the graph."""
        return name if np.dtype(dtype) == self.dtype else self.add("Cast", name, to=TYPES[self.dtype])

    def constant(self, values: Any, name: str = "constant") -> str:
        """Fixed numbers, in the type of the graph."""
        return self._constant(np.asarray(values, dtype=self.dtype), name)

    def floats(self, values: Any) -> str:
        """Fixed numbers in float32, for operators that take no others."""
        return self._constant(np.asarray(values, dtype=np.float32), "floats")

    def integers(self, values: Any) -> str:
        """Fixed integers, such as a shape or axes."""
        return self._constant(np.asarray(values, dtype=np.int64), "integers")

    def _constant(self, values: Any, name: str) -> str:
        unique = f"{name}_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(values), unique))
        return unique

    def mean(self, x: str, *axes: int) -> str:
        """Mean over axes, which go."""
        return self.add("ReduceMean", x, self.integers(axes), keepdims=0)

    def total(self, x: str, *axes: int) -> str:
        """Sum over axes, which go."""
        return self.add("ReduceSum", x, self.integers(axes), keepdims=0)

    def activation(self, kind: str, h: str) -> str:
        """a(h) for a key of `normae.networks.mlp.ACTIVATIONS`."""
        if kind in ("relu", "tanh"):
            return self.add(kind.capitalize(), h)
        if kind == "silu":
            return self.add("Mul", h, self.add("Sigmoid", h))
        return self.add("Mul", h, self._normal_share(h))

    def slope(self, kind: str, h: str) -> str:
        """a'(h)."""
        one = self.constant(1.0)
        if kind == "relu":
            return self.add("Max", self.add("Sign", h), self.constant(0.0))
        if kind == "tanh":
            y = self.add("Tanh", h)
            return self.add("Sub", one, self.add("Mul", y, y))
        if kind == "silu":
            s = self.add("Sigmoid", h)
            return self.add("Mul", s, self.add("Add", one, self.add("Mul", h, self.add("Sub", one, s))))
        bell = self.add("Exp", self.add("Mul", self.add("Mul", h, h), self.constant(-0.5)))
        density = self.add("Mul", bell, self.constant(1 / np.sqrt(2 * np.pi)))
        return self.add("Add", self._normal_share(h), self.add("Mul", h, density))

    def _normal_share(self, h: str) -> str:
        """The normal distribution function (1 + erf(h/sqrt 2))/2."""
        erf = self._erf(self.add("Mul", h, self.constant(np.sqrt(0.5))))
        return self.add("Mul", self.add("Add", erf, self.constant(1.0)), self.constant(0.5))

    def _erf(self, x: str) -> str:
        """The error function. The runtime has it in float32 only: in float64 it is a polynomial, good to 3e-15.

        erf|x| = 1 - exp(-x^2) g(|x|) with g(x) = exp(x^2) erfc(x), which is smooth in u = 8/(4 + x) - 1.
        """
        if self.dtype == np.float32:
            return self.add("Erf", x)
        size = self.add("Abs", x)
        u = self.add("Div", self.constant(8.0), self.add("Add", size, self.constant(4.0)))
        u = self.add("Sub", u, self.constant(1.0))
        first, *rest = scaled_erfc_coefficients()[::-1]
        g = self.constant(first)
        for coefficient in rest:
            g = self.add("Add", self.add("Mul", g, u), self.constant(coefficient))
        bell = self.add("Exp", self.add("Neg", self.add("Mul", x, x)))
        return self.add("Mul", self.add("Sign", x), self.add("Sub", self.constant(1.0), self.add("Mul", bell, g)))

    def model(
        self,
        inputs: dict[str, tuple[Any, ...]],
        outputs: dict[str, tuple[str, tuple[Any, ...]]],
        metadata: dict[str, str],
        name: str,
        dtype: Any,
    ) -> ModelProto:
        """The checked model.

        Args:
            inputs: shapes by name; text in a shape is a dimension that the user chooses.
            outputs: the tensor and its shape, by the name that it gets.
            metadata: kept in the file.
            dtype: of inputs and outputs.
        """
        kind = TYPES[np.dtype(dtype)]
        for out, (tensor, _) in outputs.items():
            self._nodes.append(helper.make_node("Cast", [tensor], [out], name=out, to=kind))
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(n, kind, shape) for n, shape in inputs.items()],
            [helper.make_tensor_value_info(n, kind, shape) for n, (_, shape) in outputs.items()],
            self._constants,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="normae", opset_imports=opsets, ir_version=IR_VERSION)
        helper.set_model_props(model, metadata)
        checker.check_model(model, full_check=True)
        return model


def scaled_erfc_coefficients(degree: int = 20) -> np.ndarray:
    """Of exp(x^2) erfc(x) in powers of u = 8/(4 + x) - 1, the lowest first, for x from 0 to infinity."""
    fitted = chebyshev.chebinterpolate(lambda u: erfcx(8 / np.maximum(u + 1, 1e-300) - 4), degree)
    powers: np.ndarray = chebyshev.cheb2poly(fitted)
    return powers
