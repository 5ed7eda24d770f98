"""NVIDIA's multi-process service: trials that share a GPU run at the same time, not in turns.

Knows how to start the service with folders of its own, whether it works, and how to end it. A
shell stands between: it ends the service when its standard input closes, which happens however the
driver goes. Where the service cannot be had, a GPU is shared by turns, and `note` says why.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

_CONTROL = "nvidia-cuda-mps-control"
# The service sends itself into the background, where it must not hold our pipes open; then the
# shell waits for its input to end. It is nobody's child: Ray ends the children of a process that
# dies, and whoever is to end the service must live longer than that.
_KEEPER = f"""
exec 3<&0
(
trap 'cd / && rm -rf "$CUDA_MPS_LOG_DIRECTORY"' EXIT
cd "$CUDA_MPS_LOG_DIRECTORY"
if ! {_CONTROL} -d </dev/null >said 2>&1 3<&-; then cat said; exit 1; fi
echo up
read -r _ <&3
echo quit | {_CONTROL} >/dev/null 2>&1
) &
"""
# Whoever cannot make a context with the service up could not train either.
_PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
"""
_PATIENCE_S = 20.0


class Mps:
    """The service, while it is up."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        # The folder by which programs find it; empty: it is not up.
        self.pipe = ""
        self.note = ""
        self._keeper: subprocess.Popen[str] | None = None
        if shutil.which(_CONTROL) is None:
            self.note = f"{_CONTROL} is not installed"
            return
        folder = tempfile.mkdtemp(prefix="paceline-mps-")
        environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder}
        environ |= {"CUDA_MPS_LOG_DIRECTORY": folder, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        self._keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # An interrupt is the driver's to handle.
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline().strip()
        if said != "up":
            self._give_up(said or "it ended without a word")
        elif not _works(environ):
            self._give_up("programs cannot reach it")
        else:
            self.pipe = folder

    def close(self) -> None:
        """End the service."""
        self.pipe = ""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            keeper.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(keeper.pid, signal.SIGKILL)
            keeper.communicate()

    def _give_up(self, why: str) -> None:
        self.close()
        self.note = f"{_CONTROL} does not work here ({why})"


def _works(environ: dict[str, str]) -> bool:
    probe = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            probe, env=environ, capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
