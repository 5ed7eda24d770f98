"""A stand-in for NVIDIA's multi-process service, on machines that have no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A service that logs the commands it receives.
CONTROL = """#!/bin/sh
echo "$@ $CUDA_VISIBLE_DEVICES" >> {log}
if [ "$1" = "-d" ]; then {begin}; exit; fi
read word
echo "$word" >> {log}
{end}
"""
# The functions of NVIDIA's library that the check of the service calls.
CUDA = """
import ctypes
class Cuda:
    cuInit = cuDeviceGet = cuDevicePrimaryCtxRetain = staticmethod(lambda *_: 0)
known = ctypes.CDLL
ctypes.CDLL = lambda name, *rest: Cuda() if name == "libcuda.so.1" else known(name, *rest)
"""


def write_mps_service(folder: Path, begin: str = "true", end: str = "true") -> Path:
    """Write a program with the service's name into a folder; return the path of its log."""
    log = folder / "commands"
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(CONTROL.format(log=log, begin=begin, end=end))
    program.chmod(0o755)
    return log


def write_cuda_stub(folder: Path) -> None:
    """Write a stub of NVIDIA's library for every Python with this folder on its path."""
    (folder / "sitecustomize.py").write_text(CUDA)
