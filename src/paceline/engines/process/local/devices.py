"""This machine's devices as slots, and what an attempt on some of them must know.

Knows cores, GPUs (by NVML, where its Python package is installed) and how a process is kept to its
own. Does not know who holds what.
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

# The network interface that leads nowhere but here.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Gpu(NamedTuple):
    """A GPU by its identifier, and its memory."""

    name: str
    bytes: int


class Devices(Struct, frozen=True):
    """What slots are made of: `gpus` by their identifiers, or cores where there are none."""

    # How many of them the study begins with.
    slots: int
    cores: int
    gpus: tuple[str, ...] = ()
    # What each of the GPUs has of memory.
    gpu_bytes: tuple[int, ...] = ()
    # Where trials that share a GPU find the service that lets them run at the same time.
    mps: str = ""

    @property
    def device(self) -> str:
        """What a training function gives to its framework."""
        return "cuda" if self.gpus else "cpu"

    @property
    def first(self) -> Sequence[SlotId]:
        """The slots the study begins with."""
        return range(self.slots)

    @property
    def watched(self) -> bool:
        """Whether they have to be looked after: a GPU goes without a word."""
        return bool(self.gpus)

    def nodes(self, slots: Sequence[SlotId]) -> tuple[str, ...]:
        """Return nothing: they are all on this machine."""
        return ()

    def away(self, slot: SlotId) -> None:
        """Return nobody: here everybody sees the study's folder."""

    def less(self, slots: Collection[SlotId]) -> None:
        """Give slots back: here nobody else waits for them."""

    def more(self, used: Collection[SlotId], wanted: int) -> Sequence[SlotId]:
        """Return so many further slots: cores without end, GPUs while they last."""
        if self.gpus:
            return [slot for slot in range(len(self.gpus)) if slot not in used][:wanted]
        fresh = max(used, default=-1) + 1
        return range(fresh, fresh + wanted)

    def missing(self) -> set[SlotId]:
        """Return the slots whose GPUs cannot be found any more."""
        if not self.gpus:
            return set()
        present = {gpu.name for gpu in self.look()}
        return {slot for slot, name in enumerate(self.gpus) if name not in present}

    def look(self) -> Sequence[Gpu]:
        """Return the GPUs that can be found now."""
        return _gpus()

    def threads(self, width: float) -> int:
        """Return how many threads each process of this width may use, so that all fit."""
        return max(1, int(self.cores * min(width, 1.0) / max(1, self.slots)))

    def slot_bytes(self, slot: SlotId) -> int:
        """Return what a slot has of memory: its GPU's, or its share of the machine's."""
        if self.gpus:
            return self.gpu_bytes[slot] if slot < len(self.gpu_bytes) else 0
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(1, self.slots)

    def thread_limits(self) -> dict[str, str]:
        """Return the variables that keep libraries to one slot's threads."""
        return dict.fromkeys(THREAD_VARIABLES, str(self.threads(1.0)))

    def variables(self, slots: Sequence[SlotId], width: float, rank: int) -> dict[str, str]:
        """Return the variables that keep the process of this rank to its own device."""
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads(width)))
        slot = slots[rank]
        # A study on cores keeps its hands off GPUs that it was not given.
        visible = self.gpus[slot] if slot < len(self.gpus) else ""
        variables["CUDA_VISIBLE_DEVICES"] = visible
        variables |= mps_variables(self.mps, width)
        if len(slots) > 1:
            # All of a gang are on this machine: nobody has to ask what its name resolves to.
            variables["GLOO_SOCKET_IFNAME"] = variables["NCCL_SOCKET_IFNAME"] = LOOPBACK
        return variables


def mps_variables(pipe: str, width: float) -> dict[str, str]:
    """Return the variables of a process on a share of a GPU where the service is up, if it is."""
    if not pipe or width >= 1.0:
        return {}
    # Twice its share, as NVIDIA advises: what one leaves idle another may use.
    share = min(100, math.ceil(200 * width))
    return {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)}


def find_devices(slots: int | str | None = None) -> Devices:
    """Return the devices that `slots` means.

    None: all GPUs, or all cores where there are none. A number: so many of these. `"cpu"` or
    `"cpu:4"`: cores, whatever GPUs there are.
    """
    cores = _cores()
    kind, count = _asked(slots)
    gpus: Sequence[Gpu] = () if kind == "cpu" else _gpus()
    if kind == "gpu" and not gpus:
        raise SpecError(
            f"slots={slots!r} asks for GPUs and none was found: install nvidia-ml-py and a driver, "
            "or give a number of cores."
        )
    if count is None:
        count = len(gpus) or cores
    if count < 1:
        raise SpecError(f"slots={slots!r} cannot train anything: give 1 or more.")
    if gpus and count > len(gpus):
        raise SpecError(
            f"slots={slots!r} are more than the {len(gpus)} GPUs here: give at most so many, or "
            f"'cpu:{count}' for cores."
        )
    names, sizes = tuple(gpu.name for gpu in gpus), tuple(gpu.bytes for gpu in gpus)
    return Devices(count, cores, names, sizes)


def _asked(slots: int | str | None) -> tuple[str, int | None]:
    if slots is None or isinstance(slots, int):
        return "any", slots
    kind, _, number = slots.partition(":")
    if kind in ("cpu", "gpu") and (not number or number.isdigit()):
        return kind, int(number) if number else None
    if slots.isdigit():
        return "any", int(slots)
    raise SpecError(f"slots={slots!r} cannot be read: give a number, 'cpu:4' or 'gpu:2'.")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> Sequence[Gpu]:
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
            # One that has fallen off its bus is still counted, and answers nothing.
            with suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                size = pynvml.nvmlDeviceGetMemoryInfo(handle).total
                found.append(Gpu(pynvml.nvmlDeviceGetUUID(handle), size))
    finally:
        pynvml.nvmlShutdown()
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: Sequence[Gpu], told: str | None) -> Sequence[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, by number or by the start of a name.

    As CUDA reads it: in its order, and only up to the first that is not there.
    """
    if told is None:
        return gpus
    chosen: list[Gpu] = []
    for name in (part.strip() for part in told.split(",")):
        if name.isdigit():
            meant = gpus[int(name) : int(name) + 1]
        else:
            meant = [gpu for gpu in gpus if name and gpu.name.startswith(name)]
        if len(meant) != 1 or meant[0] in chosen:
            break
        chosen += meant
    return chosen
