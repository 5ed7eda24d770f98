"""PyTorch: one trial on several devices, the same training however many they are.

Knows how the processes of a wide trial connect, exchange gradients and divide each batch. The
global batch and the order of samples do not depend on the width, so that a trial that grows or
shrinks continues the same training. Decides nothing: width and rank come with the trial.
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
    """Connect the processes of a trial; a trial of one process needs no connection."""
    device = torch.device(trial.device)
    if trial.size == 1:
        yield Gang(trial, device)
        return
    address = trial.meeting()
    interface = _find_interface(address)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=_meet(address, trial.rank, trial.size),
        rank=trial.rank,
        world_size=trial.size,
    )
    yield Gang(trial, device)
    # Only after a normal end: a process that unwinds must not wait for the others, and its exit
    # closes the group.
    distributed.destroy_process_group()


class Gang:
    """The processes of one trial, as one of them sees them."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.rank = trial.rank
        self.size = trial.size
        self.device = device
        self._seed = trial.seed

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a model whose gradients are the mean over all processes.

        A single process gets the model itself. The parameters are the model's own. Either may be
        kept: the state has the same names at any width.
        """
        return model if self.size == 1 else _DistributedModel(model)

    def batches(self, rows: int, size: int, epoch: int) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield this process's rows of each batch, and their weight.

        An epoch has each of the rows 0 … rows-1 once, in an order that depends on the trial's seed
        and the epoch. `size` is the size of the whole batch, at any width. Multiply the mean loss
        of the rows by the weight: then the mean gradient over all processes is that of the whole
        batch, also when it divides unevenly.
        """
        if size < 1 or rows < 1:
            raise TrialError(f"rows={rows}, size={size} are invalid: both must be at least 1.")
        generator = torch.Generator().manual_seed(_derive_seed(self._seed, epoch))
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows, size):
            batch = order[start : start + size]
            mine = batch[self.rank :: self.size]
            # With fewer rows than processes, a process takes a row with weight 0, since all must
            # exchange gradients.
            weight = self.size * len(mine) / len(batch)
            yield (mine if len(mine) else batch[:1]).to(self.device), weight

    def mean(self, value: float | torch.Tensor, weight: float = 1.0) -> float:
        """Return the mean of a value over all processes, weighted, for example by their rows."""
        if self.size == 1:
            return float(value)
        both = torch.tensor([float(value) * weight, weight], dtype=torch.float64).to(self.device)
        distributed.all_reduce(both)
        total, weights = both.tolist()
        return float(total / weights)


def scaled_lr(lr: float, width: float, rule: Literal["linear", "sqrt"] = "linear") -> float:
    """Return the learning rate for a batch that grows with the width: times width, or its root.

    Use it if the batch of each process is constant. With `Gang.batches` the global batch is
    constant, and so is the rate.
    """
    if rule not in ("linear", "sqrt"):
        raise TrialError(f"rule={rule!r} is invalid: must be 'linear' or 'sqrt'.")
    times = max(width, 1.0)
    return lr * (times if rule == "linear" else times**0.5)


class _DistributedModel(DistributedDataParallel):
    """A distributed model whose state has the names of the plain model."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.module.load_state_dict(*args, **kwargs)


def _meet(address: str, rank: int, size: int) -> Any:  # noqa: ANN401 - torch does not export it
    """Return the store by which the processes find each other.

    PyTorch's own store listens on every network of the machine, and accepts every connection. This
    one listens on the given address alone: on one machine, no other machine can reach it.
    """
    make: Any = distributed.TCPStore  # type: ignore[attr-defined] # torch does not say so
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if rank:
        return make(host, int(port), size, is_master=False, use_libuv=False)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, int(port)), family=family, backlog=size)
    return make(
        host,
        int(port),
        size,
        is_master=True,
        master_listen_fd=listener.detach(),
        use_libuv=False,
    )


def _find_interface(address: str) -> str:
    """Return the network interface by which this machine reaches an address; empty if unknown.

    Gloo would use the interface that the machine's name resolves to. On many machines that is the
    loopback, which processes on other machines cannot reach.
    """
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, int(port)))  # sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # some have no address
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(reply[20:24]) == own:
                    return name
    return ""


def _derive_seed(seed: int, epoch: int) -> int:
    return int(stream(seed, "batches", epoch).random() * 2**53)
