"""Curve model: a transformer trained on synthetic curves (a prior-fitted network), run by ONNX."""
