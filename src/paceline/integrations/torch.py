"""PyTorch: one trial on several devices, the same training however many they are.

Knows how the processes of a wide trial meet, exchange gradients and divide each batch between them.
The global batch and the order of samples do not depend on the width, so that a trial that grows or
shrinks goes on where it was. Decides nothing: width and rank come with the trial.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from paceline.core.errors import TrialError
from paceline.core.rng import stream

try:
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:
    raise ImportError(
        "paceline.integrations.torch needs PyTorch: pip install 'paceline[torch]'."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.worker.trial import Trial

# From linux/sockios.h.
_SIOCGIFADDR = 0x8915


@contextmanager
def gang(trial: Trial) -> Iterator[Gang]:
    """Let the processes of a trial meet; at width 1 or less there is nobody to meet."""
    device = torch.device(trial.device)
    if trial.size == 1:
        yield Gang(trial, device)
        return
    address = trial.meeting()
    interface = _interface(address)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{address}",
        rank=trial.rank,
        world_size=trial.size,
    )
    yield Gang(trial, device)
    # Only where all came to the end: whoever unwinds must not wait for the others, and its process
    # ends in a moment.
    distributed.destroy_process_group()


class Gang:
    """The processes of one trial, seen from one of them."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.rank = trial.rank
        self.size = trial.size
        self.device = device
        self._seed = trial.seed

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a model whose gradients are the mean over all processes; alone, itself.

        The parameters are the model's own. Either may be kept: both have the model's state, by the
        same names at any width.
        """
        return model if self.size == 1 else _Shared(model)

    def batches(self, rows: int, size: int, epoch: int) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield this process's rows of each batch: all of 0 … rows-1 once an epoch, shuffled.

        The order depends on the trial's seed and the epoch, and `size` is the whole batch's, at any
        width. With the rows comes a weight: times that, the mean loss of these rows has gradients
        whose mean over the gang is the whole batch's, also where it divides unevenly.
        """
        if size < 1 or rows < 1:
            raise TrialError(f"{rows} rows in batches of {size} cannot be meant: give 1 or more.")
        generator = torch.Generator().manual_seed(_seed_of(self._seed, epoch))
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows, size):
            batch = order[start : start + size]
            mine = batch[self.rank :: self.size]
            # Of a batch with fewer rows than processes somebody has none: it goes along with one
            # that does not count, since all must exchange gradients.
            weight = self.size * len(mine) / len(batch)
            yield (mine if len(mine) else batch[:1]).to(self.device), weight

    def mean(self, value: float | torch.Tensor, weight: float = 1.0) -> float:
        """Return the mean of what all processes measured, each by its weight, such as its rows."""
        if self.size == 1:
            return float(value)
        both = torch.tensor([float(value) * weight, weight], dtype=torch.float64).to(self.device)
        distributed.all_reduce(both)
        total, weights = both.tolist()
        return float(total / weights)


def scaled_lr(lr: float, width: float, rule: Literal["linear", "sqrt"] = "linear") -> float:
    """Return a learning rate for a batch that grows with the width: lr times width, or its root.

    For those who keep the batch of each process and not the global one; with `Gang.batches` the
    rate stays as it is.
    """
    if rule not in ("linear", "sqrt"):
        raise TrialError(f"rule={rule!r} is unknown: say 'linear' or 'sqrt'.")
    times = max(width, 1.0)
    return lr * (times if rule == "linear" else times**0.5)


class _Shared(DistributedDataParallel):
    """A model whose state has the names it has alone."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.module.load_state_dict(*args, **kwargs)


def _interface(address: str) -> str:
    """Return the network interface by which this machine reaches an address; empty: unknown.

    Gloo would take what the machine's name resolves to. On many that is the loopback, where no
    process on another machine finds it.
    """
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, int(port)))  # sends nothing
        ours = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # some have no address
                asked = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(asked[20:24]) == ours:
                    return name
    return ""


def _seed_of(seed: int, epoch: int) -> int:
    return int(stream(seed, "batches", epoch).random() * 2**53)
