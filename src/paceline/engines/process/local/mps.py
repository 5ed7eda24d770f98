"""NVIDIA's multi-process service (MPS): trials that share a GPU run at the same time.

Starts the service with a folder of its own, checks that it works, and ends it. A shell, the keeper,
ends the service when its standard input closes, which happens however the driver exits. Without the
service, trials on one GPU take turns, and `note` has the reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

_CONTROL = "nvidia-cuda-mps-control"
# The service becomes a daemon, which must not hold the pipes open; then the shell waits for its
# input to end. The subshell in the background is not a child of the driver: Ray kills the children
# of a process that exits, and the keeper has to outlive them to end the service.
_KEEPER = f"""
exec 3<&0
(
trap 'cd / && rm -rf "$CUDA_MPS_LOG_DIRECTORY"' EXIT
cd "$CUDA_MPS_LOG_DIRECTORY"
if ! {_CONTROL} -d </dev/null >output 2>&1 3<&-; then cat output; exit 1; fi
echo up
read -r _ <&3
echo quit | {_CONTROL} >/dev/null 2>&1
) &
"""
# A process that cannot create a CUDA context through the service could not train either.
_PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
"""
_TIMEOUT_S = 20.0


class Mps:
    """The service, while it runs."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        # The folder through which programs connect to it; empty: it does not run.
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
            # A keyboard interrupt is the driver's to handle.
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        answer = self._keeper.stdout.readline().strip()
        if answer != "up":
            self._give_up(answer or "it ended without a message")
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
            keeper.communicate(timeout=_TIMEOUT_S)
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
            probe, env=environ, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
