"""A stand-in for NVIDIA's multi-process service, on machines that have no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A service that writes down what it is told.
CONTROL = """#!/bin/sh
echo "$@ $CUDA_VISIBLE_DEVICES" >> {log}
if [ "$1" = "-d" ]; then {begin}; exit; fi
read word
echo "$word" >> {log}
{end}
"""
# NVIDIA's library, as far as the service is tried out with it.
CUDA = """
import ctypes
class Cuda:
    cuInit = cuDeviceGet = cuDevicePrimaryCtxRetain = staticmethod(lambda *_: 0)
known = ctypes.CDLL
ctypes.CDLL = lambda name, *rest: Cuda() if name == "libcuda.so.1" else known(name, *rest)
"""


def service(folder: Path, begin: str = "true", end: str = "true") -> Path:
    """Put a program of the service's name into a folder; return where it writes what it hears."""
    log = folder / "heard"
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(CONTROL.format(log=log, begin=begin, end=end))
    program.chmod(0o755)
    return log


def library(folder: Path) -> None:
    """Let every Python that finds this folder on its path first believe in the library."""
    (folder / "sitecustomize.py").write_text(CUDA)
