"""Checkpoint files: nested values and arrays in one file, without pickle.

The format: a magic word, the length of a JSON header, the header, then raw buffers. The header has
the values, with arrays, tensors and bytes as references to buffers. Reading runs no code: a file
can be damaged, which its digest shows, but not dangerous.
"""

from __future__ import annotations

import math
import os
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.core.errors import CheckpointError
from paceline.worker.atomic_file import open_regular_file, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAGIC = b"PACELINE1\n"
# Buffers start at multiples of this, so that arrays are aligned in the file.
_ALIGN = 64
# The key of an object that stands for a value JSON cannot hold.
_MARK = "~"
_BIG = 2**63
# The kinds of numpy arrays that can be written: numbers and text.
_KINDS = frozenset("biufcSU")


def write(path: Path, values: dict[str, Any]) -> tuple[int, str]:
    """Write values to a file, atomically; return its size and digest."""
    packer = _Packer()
    header = msgspec.json.encode(packer.pack(values, ""))
    digest = blake2b(digest_size=16)
    size = 0
    with write_atomically(path) as part, open(part, "wb") as file:

        def put(data: Any) -> None:  # noqa: ANN401 - bytes or a memory view
            nonlocal size
            digest.update(data)
            file.write(data)
            size += len(data)

        put(MAGIC)
        put(len(header).to_bytes(8, "little"))
        put(header)
        for buffer in packer.buffers:
            put(bytes(-size % _ALIGN))
            put(buffer)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)
    return size, digest.hexdigest()


def read(path: Path, digest: str = "") -> dict[str, Any]:
    """Return the values of a file; with a digest, raise CheckpointError if it does not match."""
    try:
        with open_regular_file(path) as file:
            body = file.read()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path.name} cannot be read: {error.strerror}.") from None
    if digest and blake2b(body, digest_size=16).hexdigest() != digest:
        raise CheckpointError(f"checkpoint {path.name} is damaged: its digest does not match.")
    if body[: len(MAGIC)] != MAGIC:
        raise CheckpointError(f"{path.name} is not a checkpoint of Paceline.")
    start = len(MAGIC) + 8
    end = start + int.from_bytes(body[len(MAGIC) : start], "little")
    try:
        tree = msgspec.json.decode(body[start:end])
        unpacked = dict(_Unpacker(memoryview(body), end).unpack(tree))
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError, AttributeError, RuntimeError):
        raise CheckpointError(
            f"checkpoint {path.name} is damaged: its header cannot be read."
        ) from None
    return unpacked


def check(value: Any, name: str) -> None:  # noqa: ANN401
    """Raise CheckpointError if a value cannot be written."""
    _Packer().pack(value, f".{name}")


class _Packer:
    """Packs values into JSON values and buffers."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []

    def pack(self, value: Any, where: str) -> Any:  # noqa: ANN401
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_BIG <= value < _BIG else {_MARK: "int", "text": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {_MARK: "float", "text": str(value)}
        if kind is list:
            return [self.pack(item, f"{where}[{at}]") for at, item in enumerate(value)]
        if kind is tuple:
            items = [self.pack(item, f"{where}[{at}]") for at, item in enumerate(value)]
            return {_MARK: "tuple", "items": items}
        if isinstance(value, dict):
            return self._dict(value, where)
        if kind is bytes or kind is bytearray:
            return {_MARK: kind.__name__, **self._buffer(value)}
        return self._foreign(value, kind, where)

    def _dict(self, value: dict[Any, Any], where: str) -> Any:  # noqa: ANN401
        if all(type(key) is str for key in value) and _MARK not in value:
            return {key: self.pack(item, f"{where}.{key}") for key, item in value.items()}
        items = [
            [self.pack(key, where), self.pack(item, f"{where}[{key!r}]")]
            for key, item in value.items()
        ]
        return {_MARK: "dict", "items": items}

    def _foreign(self, value: Any, kind: type, where: str) -> Any:  # noqa: ANN401
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            name = str(value.dtype).removeprefix("torch.")
            shape = list(value.shape)
            return {_MARK: "tensor", "dtype": name, "shape": shape, **self._buffer(_view(flat))}
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            array = numpy.ascontiguousarray(value)
            if array.dtype.kind not in _KINDS:
                raise _cannot(where, f"an array of {array.dtype}")
            mark = "array" if isinstance(value, numpy.ndarray) else "scalar"
            shape = list(value.shape)
            view = memoryview(array.reshape(-1).view(numpy.uint8))
            return {_MARK: mark, "dtype": array.dtype.str, "shape": shape, **self._buffer(view)}
        raise _cannot(where, f"a {kind.__module__}.{kind.__qualname__}")

    def _buffer(self, data: Any) -> dict[str, int]:  # noqa: ANN401
        self.buffers.append(data)
        return {"size": len(data)}


class _Unpacker:
    """Unpacks a header and its buffers into values."""

    def __init__(self, body: memoryview, at: int) -> None:
        self._body = body
        self._at = at

    def unpack(self, value: Any) -> Any:  # noqa: ANN401
        if type(value) is list:
            return [self.unpack(item) for item in value]
        if type(value) is not dict:
            return value
        match value.get(_MARK):
            case None:
                return {key: self.unpack(item) for key, item in value.items()}
            case "tuple":
                return tuple(self.unpack(item) for item in value["items"])
            case "dict":
                return {self.unpack(key): self.unpack(item) for key, item in value["items"]}
            case "int":
                return int(value["text"])
            case "float":
                return float(value["text"])
            case "bytes":
                return bytes(self._buffer(value["size"]))
            case "bytearray":
                return bytearray(self._buffer(value["size"]))
            case mark:
                return self._foreign(mark, value["dtype"], value["shape"], value["size"])

    def _foreign(self, mark: str, dtype: str, shape: Sequence[int], size: int) -> Any:  # noqa: ANN401
        if mark == "tensor":
            import torch

            kind = getattr(torch, dtype)
            _check_size(shape, kind.itemsize, size)
            if not size:
                return torch.empty(shape, dtype=kind)
            data = bytearray(self._buffer(size))
            return torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)
        if mark not in ("array", "scalar"):
            raise ValueError(mark)
        import numpy

        of = numpy.dtype(dtype)
        if of.kind not in _KINDS:
            raise ValueError(dtype)
        _check_size(shape, of.itemsize, size)
        # A copy: the restored array must be writable.
        array = numpy.frombuffer(bytearray(self._buffer(size)), dtype=of).reshape(shape)
        return array if mark == "array" else array[()]

    def _buffer(self, size: int) -> memoryview:
        start = self._at + -self._at % _ALIGN
        self._at = start + size
        if size < 0 or self._at > len(self._body):
            raise ValueError("the file ends early")
        return self._body[start : self._at]


def _check_size(shape: Sequence[int], item: int, size: int) -> None:
    # Before anything is allocated: a small file may name a huge array.
    if min(shape, default=0) < 0 or math.prod(shape) * item != size:
        raise ValueError("the shape does not fit the buffer")


def _view(tensor: Any) -> memoryview:  # noqa: ANN401
    # A tensor has no buffer protocol, but its numpy view has; without numpy, through bytes.
    try:
        return memoryview(tensor.numpy())
    except RuntimeError:
        return memoryview(bytes(tensor.tolist()))


def _cannot(where: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"keep{where} holds {what}, which cannot be written: keep objects with state_dict and "
        "load_state_dict, arrays, numbers, strings, lists and dicts of these, or give a pair of "
        "functions (save, load)."
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
