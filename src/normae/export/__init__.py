"""A trained model as a file that runs without it: an ONNX graph, or a small network in fixed-point arithmetic."""
