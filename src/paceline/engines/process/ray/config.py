"""What a study wants of a Ray cluster, in the user's words, and the way into it.

Knows how a cluster is found and what is said where there is none. Imports Ray when it is asked to
connect, and not before.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from types import ModuleType

_KNOCK_S = 5.0


class Ray(Struct, frozen=True, kw_only=True):
    """A Ray cluster as the ground of a study: `slots=pl.Ray(address="auto", gpus=8)`.

    A slot is a GPU, or a CPU where the cluster has no GPU or `cpus` are asked for. Without a number
    the study takes what is free, also on nodes that come later. With one it asks for so many and
    begins with what there is; the rest stays asked for, where Ray's autoscaler sees it.
    """

    # Where the cluster is: "auto" finds the one this machine belongs to, "local" starts one here.
    address: str = "auto"
    gpus: int | None = None
    cpus: int | None = None
    # Ray's own: `working_dir`, `py_modules`, `pip`, `env_vars`. Code travels by it.
    runtime_env: dict[str, Any] | None = None
    # Where nodes keep files of their own, which go into the study's storage in the end. None: in
    # the study's folder, or where a node does not see that, among its temporary files.
    disk: str | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.cpus is not None:
            raise SpecError("gpus and cpus were both given: a slot is one or the other.")
        for name, count in (("gpus", self.gpus), ("cpus", self.cpus)):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise SpecError(f"{name}={count!r} cannot train anything: give 1 or more.")

        if self.disk is not None and not os.path.isabs(self.disk):
            raise SpecError(
                f"disk={self.disk!r} is another folder for everybody: give an absolute path."
            )

    @property
    def count(self) -> int | None:
        """How many slots are asked for; None: all that are free."""
        return self.cpus if self.gpus is None else self.gpus


def ray_of(slots: object) -> Ray | None:
    """Return the cluster that `slots` means, None where it means this machine.

    `"ray"`, `"ray:gpu:8"` and `"ray:cpu:8@10.0.0.1:6379"` are the command line's words for it.
    """
    if isinstance(slots, Ray):
        return slots
    if not isinstance(slots, str) or not slots.startswith("ray"):
        return None
    written, _, address = slots.partition("@")
    found: dict[str, Any] = {"address": address} if address else {}
    match written.split(":"):
        case ["ray"]:
            return Ray(**found)
        case ["ray", "gpu" | "cpu" as kind, number] if number.isdigit():
            found[f"{kind}s"] = int(number)
            return Ray(**found)
    raise SpecError(
        f"slots={written!r} cannot be read: give 'ray' for all that is free on a cluster, "
        "'ray:gpu:8' or 'ray:cpu:8'."
    )


def imported() -> ModuleType:
    """Return Ray, or say how it is installed."""
    try:
        import ray
    except ImportError:
        raise SpecError(
            "slots on a Ray cluster need Ray, which is not installed: "
            "`pip install 'paceline[ray]'`, here and on every node."
        ) from None
    module: ModuleType = ray
    return module


def connected(wanted: Ray, namespace: str | None = None) -> bool:
    """Be connected to the cluster; return whether that was our doing, and is ours to end."""
    ray = imported()
    if ray.is_initialized():
        return False
    try:
        _knock(wanted.address)
        ray.init(
            address=wanted.address,
            namespace=namespace,
            runtime_env=wanted.runtime_env,
            log_to_driver=False,
            logging_level="warning",
        )
    except (OSError, RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0].rstrip(".")
        raise SpecError(
            f"no Ray cluster was reached at address={wanted.address!r} ({first}): start one with "
            "`ray start --head`, give its address, or address='local' for one on this machine."
        ) from None
    return True


def _knock(address: str) -> None:
    """Raise an OSError where nobody answers: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
