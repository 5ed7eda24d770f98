"""Checkpoint files: values of all kinds, and files that are damaged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paceline.core.errors import CheckpointError
from paceline.worker import checkpoint_file

if TYPE_CHECKING:
    from pathlib import Path


def test_plain_values_come_back_as_they_were(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "none": None,
        "flag": True,
        "text": "ä",
        "numbers": [1, -(2**63), 2**70, 0.1, math.inf, -math.inf],
        "tuple": (1, (2, [3])),
        "keys": {1: "a", (2, 3): "b"},
        "mark": {"~": 1},
        "bytes": b"\x00\x01",
        "array": bytearray(b"xyz"),
    }
    size, digest = checkpoint_file.write(tmp_path / "a.ckpt", values)
    assert size == (tmp_path / "a.ckpt").stat().st_size
    assert checkpoint_file.read(tmp_path / "a.ckpt", digest) == values
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_arrays_come_back_with_their_type_and_are_writable(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.arange(6).reshape(2, 3).T,
        "empty": np.zeros((0, 4)),
        "text": np.array(["a", "bc"]),
        "scalar": np.float64(0.5),
    }
    checkpoint_file.write(tmp_path / "a.ckpt", arrays)
    read = checkpoint_file.read(tmp_path / "a.ckpt")
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert np.array_equal(read[name], array)
    read["floats"] += 1.0


def test_tensors_come_back_with_their_type(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = {
        "weights": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "turned": torch.arange(6).reshape(2, 3).T,
        "empty": torch.empty((0, 3)),
    }
    checkpoint_file.write(tmp_path / "a.ckpt", tensors)
    read = checkpoint_file.read(tmp_path / "a.ckpt")
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [object()]}, r"keep\.model\.a\[0\] holds a builtins\.object"),
        (np.array([object()]), "holds an array of object"),
        ({"a": {1: {2}}}, "holds a builtins.set"),
    ],
)
def test_a_value_that_cannot_be_written_is_named(value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        checkpoint_file.check(value, "model")


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        checkpoint_file.read(path)
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match=r"a\.ckpt is not a checkpoint of Paceline"):
        checkpoint_file.read(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    _, digest = checkpoint_file.write(path, {"a": b"0123456789"})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    with pytest.raises(CheckpointError, match="its digest does not match"):
        checkpoint_file.read(path, digest)
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="its header cannot be read"):
        checkpoint_file.read(path)
    path.write_bytes(whole.replace(b'"bytes"', b'"other"'))
    with pytest.raises(CheckpointError, match="its header cannot be read"):
        checkpoint_file.read(path)


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").mkdir()
    with pytest.raises(OSError, match="directory"):
        checkpoint_file.write(tmp_path / "a.ckpt", {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]
