"""Export the network as ONNX, op by op, and compare onnxruntime's output with torch's.

Knows the graph of `model.py`. It is written by hand, so that the file holds only standard
operators, independent of torch's version: `python -m training.pfn.export CHECKPOINT FILE`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from paceline.curves.pfn.encoding import ASKED, BUCKETS, OTHER, POINT, WHOLE
from training.pfn.model import Network
from training.pfn.tokens import Batch

if TYPE_CHECKING:
    from torch import nn

INPUTS = {
    "points": ["curves", "points", POINT],
    "there": ["curves", "points"],
    "whole": ["curves", WHOLE],
    "others": ["curves", "others", OTHER],
    "met": ["curves", "others"],
    "asked": ["curves", "questions", ASKED],
}


class Graph:
    """A growing list of operators; each call adds one and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def __call__(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def value(self, array: np.ndarray, name: str = "") -> str:
        """Add a constant."""
        name = name or f"value_{len(self.weights)}"
        self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def integers(self, *values: int) -> str:
        """Add a shape or a list of axes."""
        return self.value(np.array(values, dtype=np.int64))

    def number(self, value: float) -> str:
        """Add a number."""
        return self.value(np.array(value, dtype=np.float32))

    def linear(self, x: str, layer: nn.Linear, name: str) -> str:
        """Apply a layer of weights."""
        weight = self.value(layer.weight.detach().numpy().T.copy(), f"{name}.weight")
        bias = self.value(layer.bias.detach().numpy(), f"{name}.bias")
        return self("Add", self("MatMul", x, weight), bias)

    def normal(self, x: str, layer: nn.LayerNorm, name: str) -> str:
        """Apply a layer norm."""
        weight = self.value(layer.weight.detach().numpy(), f"{name}.weight")
        bias = self.value(layer.bias.detach().numpy(), f"{name}.bias")
        return self("LayerNormalization", x, weight, bias, axis=-1, epsilon=layer.eps)


def write_onnx(network: Network, path: Path) -> None:
    """Write the network to a file; its outputs are probabilities."""
    g = Graph()
    one = g.integers(1)
    whole = g("Unsqueeze", g.linear("whole", network.whole, "whole"), one)
    others = g.linear("others", network.other, "other")
    points = g.linear("points", network.point, "point")
    known = g("Concat", whole, others, points, axis=1)
    context = g("Unsqueeze", g.linear("whole", network.context, "context"), one)
    asked = g("Add", g.linear("asked", network.asked, "asked"), context)
    # 0 for a token that exists, a large negative number for padding.
    first = g("Slice", "whole", g.integers(0), g.integers(1), one)
    always = g("Sub", first, first)
    hidden = g("Sub", g("Concat", "met", "there", axis=1), g.number(1.0))
    mask = g("Concat", always, g("Mul", hidden, g.number(1e9)), axis=1)
    mask = g("Unsqueeze", mask, g.integers(1, 2))
    size = g("Gather", g("Shape", known), g.integers(1), axis=0)
    x = g("Concat", known, asked, axis=1)
    width = network.head.in_features
    for number, layer in enumerate(network.layers):
        x = _add_layer(g, x, layer, f"layer{number}", (size, mask, width))
    x = g("Slice", x, size, g.integers(2**31), one)
    logits = g.linear(g.normal(x, network.after, "after"), network.head, "head")
    g.nodes.append(helper.make_node("Softmax", [logits], ["chances"], axis=-1))
    graph = helper.make_graph(
        g.nodes,
        "paceline-pfn",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in INPUTS.items()],
        [
            helper.make_tensor_value_info(
                "chances", TensorProto.FLOAT, ["curves", "questions", BUCKETS + 1]
            )
        ],
        list(g.weights.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model.producer_name = "paceline"
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _add_layer(g: Graph, x: str, layer: nn.Module, name: str, common: tuple[str, str, int]) -> str:
    size, mask, width = common
    each = width // layer.heads
    normal = g.normal(x, layer.before, f"{name}.before")
    shape = g.integers(0, -1, layer.heads, each)
    known = g("Slice", normal, g.integers(0), size, g.integers(1))

    def heads(of: str, perm: list[int]) -> str:
        return g("Transpose", g("Reshape", of, shape), perm=perm)

    scaled = g("Mul", g.linear(normal, layer.query, f"{name}.query"), g.number(each**-0.5))
    query = heads(scaled, [0, 2, 1, 3])
    both = g.linear(known, layer.key_value, f"{name}.key_value")
    key = heads(g("Slice", both, g.integers(0), g.integers(width), g.integers(2)), [0, 2, 3, 1])
    value = heads(
        g("Slice", both, g.integers(width), g.integers(2 * width), g.integers(2)), [0, 2, 1, 3]
    )
    weights = g("Softmax", g("Add", g("MatMul", query, key), mask), axis=-1)
    seen = g("Transpose", g("MatMul", weights, value), perm=[0, 2, 1, 3])
    seen = g("Reshape", seen, g.integers(0, -1, width))
    x = g("Add", x, g.linear(seen, layer.out, f"{name}.out"))
    inner = g.linear(g.normal(x, layer.between, f"{name}.between"), layer.up, f"{name}.up")
    inner = g("Gelu", inner, approximate="tanh")
    return g("Add", x, g.linear(inner, layer.down, f"{name}.down"))


def measure_difference(network: Network, path: Path, seed: int = 0) -> float:
    """Return the largest difference between probabilities of torch and of onnxruntime."""
    import onnxruntime

    torch.manual_seed(seed)
    batch = Batch(
        torch.randn(3, 10, POINT),
        (torch.arange(10) < torch.tensor([[10], [4], [1]])),
        torch.randn(3, WHOLE),
        torch.randn(3, 5, OTHER),
        (torch.arange(5) < torch.tensor([[5], [0], [2]])),
        torch.randn(3, 7, ASKED),
    )
    with torch.no_grad():
        ours = network(batch).softmax(-1).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {name: getattr(batch, name).float().numpy() for name in INPUTS}
    (theirs,) = session.run(None, feed)
    return float(np.abs(ours - theirs).max())


def main() -> None:
    """Read a checkpoint and write the ONNX file."""
    parser = argparse.ArgumentParser(description="Write a checkpoint's averaged weights as ONNX.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    kept = torch.load(given.checkpoint, map_location="cpu", weights_only=True)
    network = Network()
    network.load_state_dict(kept["average"])
    write_onnx(network.eval(), given.file)
    off = measure_difference(network, given.file)
    print(
        f"{given.file}: {given.file.stat().st_size} bytes, largest difference from torch {off:.1e}"
    )


if __name__ == "__main__":
    main()
