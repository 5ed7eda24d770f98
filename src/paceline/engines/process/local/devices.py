"""The devices of this machine as slots, and the environment of a process on them.

Knows cores, GPUs (through NVML, if its Python package is installed) and how a process is confined
to its own device. Does not know which attempt is on which slot.
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from paceline.core.values import SlotId

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

# The value of `slots` that runs trials in the driver's process.
INLINE = "inline"

# The loopback network interface.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Gpu(NamedTuple):
    """A GPU: its identifier and its memory."""

    name: str
    bytes: int


class LocalDevices(Struct, frozen=True):
    """The slots of this machine: GPUs by their identifiers, or cores if there are none."""

    # The number of slots the study begins with.
    slots: int
    cores: int
    gpus: tuple[str, ...] = ()
    # The memory of each GPU.
    gpu_bytes: tuple[int, ...] = ()
    # The pipe directory of NVIDIA's multi-process service; empty: it is not used.
    mps: str = ""

    @property
    def device(self) -> str:
        """The device name a training function gives to its framework: `cpu` or `cuda`."""
        return "cuda" if self.gpus else "cpu"

    @property
    def initial_slots(self) -> Sequence[SlotId]:
        """The slots the study begins with."""
        return range(self.slots)

    @property
    def needs_watching(self) -> bool:
        """Whether the slots are GPUs: these can disappear without an error."""
        return bool(self.gpus)

    def nodes(self, slots: Sequence[SlotId]) -> tuple[str, ...]:
        """Return nothing: all slots are on this machine."""
        return ()

    def node_files(self, slot: SlotId) -> None:
        """Return None: every process here sees the study's folder."""

    def give_back(self, slots: Collection[SlotId]) -> None:
        """Do nothing: the slots of this machine are not shared with other studies."""

    def more(self, used: Collection[SlotId], wanted: int) -> Sequence[SlotId]:
        """Return further slots: any number of cores, or the GPUs that are left."""
        if self.gpus:
            return [slot for slot in range(len(self.gpus)) if slot not in used][:wanted]
        fresh = max(used, default=-1) + 1
        return range(fresh, fresh + wanted)

    def missing(self) -> set[SlotId]:
        """Return the slots of GPUs that have disappeared."""
        if not self.gpus:
            return set()
        present = {gpu.name for gpu in self.list_gpus()}
        return {slot for slot, name in enumerate(self.gpus) if name not in present}

    def list_gpus(self) -> Sequence[Gpu]:
        """Return the GPUs that are present now."""
        return _find_gpus()

    def threads(self, width: float) -> int:
        """Return how many threads each process of this width may use, so that all slots fit."""
        return max(1, int(self.cores * min(width, 1.0) / max(1, self.slots)))

    def slot_bytes(self, slot: SlotId) -> int:
        """Return the memory of a slot: its GPU's, or its share of the machine's."""
        if self.gpus:
            return self.gpu_bytes[slot] if slot < len(self.gpu_bytes) else 0
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(1, self.slots)

    def thread_limits(self) -> dict[str, str]:
        """Return the variables that limit libraries to the threads of one slot."""
        return dict.fromkeys(THREAD_VARIABLES, str(self.threads(1.0)))

    def variables(self, slots: Sequence[SlotId], width: float, rank: int) -> dict[str, str]:
        """Return the variables that confine the process of this rank to its device."""
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads(width)))
        slot = slots[rank]
        # A study on cores must not use GPUs.
        visible = self.gpus[slot] if slot < len(self.gpus) else ""
        variables["CUDA_VISIBLE_DEVICES"] = visible
        variables |= mps_variables(self.mps, width)
        if len(slots) > 1:
            # The whole gang is on this machine: no host name has to be resolved.
            variables["GLOO_SOCKET_IFNAME"] = variables["NCCL_SOCKET_IFNAME"] = LOOPBACK
        return variables


class InlineDevices(LocalDevices, frozen=True):
    """The one slot of `slots="inline"`: the driver's own process, with all that it sees."""

    @property
    def needs_watching(self) -> bool:
        """Return False: if the process loses its GPU, the driver ends with it."""
        return False

    def more(self, used: Collection[SlotId], wanted: int) -> Sequence[SlotId]:
        """Return nothing: the process runs one trial at a time."""
        return ()

    def variables(self, slots: Sequence[SlotId], width: float, rank: int) -> dict[str, str]:
        """Return nothing: the environment of the process stays as it is."""
        return {}


def mps_variables(pipe: str, width: float) -> dict[str, str]:
    """Return the variables of a process on a share of a GPU; none without the service."""
    if not pipe or width >= 1.0:
        return {}
    # Twice its share, as NVIDIA advises: processes may use what others leave idle.
    share = min(100, math.ceil(200 * width))
    return {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)}


def find_devices(slots: int | str | None = None) -> LocalDevices:
    """Return the devices for the option `slots`.

    None: all GPUs, or all cores if there are none. A number: that many of these. `"cpu"` or
    `"cpu:4"`: cores, even if there are GPUs. `"inline"`: the driver's own process.
    """
    cores = _count_cores()
    if slots == INLINE:
        own = tuple(gpu.name for gpu in _find_gpus()[:1])
        return InlineDevices(1, cores, own)
    kind, count = _parse_slots(slots)
    gpus: Sequence[Gpu] = () if kind == "cpu" else _find_gpus()
    if kind == "gpu" and not gpus:
        raise SpecError(
            f"slots={slots!r} needs GPUs, but none was found: install nvidia-ml-py and a driver, "
            "or "
            "give a number of cores."
        )
    if count is None:
        count = len(gpus) or cores
    if count < 1:
        raise SpecError(f"slots={slots!r} is invalid: must be at least 1.")
    if gpus and count > len(gpus):
        raise SpecError(
            f"slots={slots!r} is more than the {len(gpus)} GPUs of this machine: give fewer, or "
            f"'cpu:{count}' for cores."
        )
    names, sizes = tuple(gpu.name for gpu in gpus), tuple(gpu.bytes for gpu in gpus)
    return LocalDevices(count, cores, names, sizes)


def _parse_slots(slots: int | str | None) -> tuple[str, int | None]:
    if slots is None or isinstance(slots, int):
        return "any", slots
    kind, _, number = slots.partition(":")
    if kind in ("cpu", "gpu") and (not number or number.isdigit()):
        return kind, int(number) if number else None
    if slots.isdigit():
        return "any", int(slots)
    raise SpecError(f"slots={slots!r} is invalid: give a number, 'cpu:4', 'gpu:2' or 'inline'.")


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _find_gpus() -> Sequence[Gpu]:
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    found = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            # NVML still counts a GPU that has fallen off its bus, and raises for it.
            with suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                size = pynvml.nvmlDeviceGetMemoryInfo(handle).total
                found.append(Gpu(pynvml.nvmlDeviceGetUUID(handle), size))
    finally:
        pynvml.nvmlShutdown()
    return select_visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def select_visible(gpus: Sequence[Gpu], variable: str | None) -> Sequence[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by number or by the start of their name.

    As CUDA does: in the order of the variable, and only up to the first that does not exist.
    """
    if variable is None:
        return gpus
    chosen: list[Gpu] = []
    for name in (part.strip() for part in variable.split(",")):
        if name.isdigit():
            found = gpus[int(name) : int(name) + 1]
        else:
            found = [gpu for gpu in gpus if name and gpu.name.startswith(name)]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return chosen
