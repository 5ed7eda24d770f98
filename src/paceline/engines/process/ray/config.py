"""The slots that a study takes from a Ray cluster, and the connection to the cluster.

Knows the options of `pl.Ray`, their short form on the command line, and the errors of a cluster
that does not answer. Imports Ray only to connect.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.core.errors import SpecError

if TYPE_CHECKING:
    from types import ModuleType

_CONNECT_S = 5.0


class Ray(Struct, frozen=True, kw_only=True):
    """The slots of a study on a Ray cluster: `slots=pl.Ray(address="auto", gpus=8)`.

    A slot is a GPU, or a CPU if the cluster has no GPU or `cpus` is given. Without a number the
    study takes all free ones, also on nodes that come later. With a number it requests that many
    and begins with those available; the rest stays requested, visible to Ray's autoscaler.
    """

    # "auto" finds the cluster this machine belongs to, "local" starts one here.
    address: str = "auto"
    gpus: int | None = None
    cpus: int | None = None
    # Ray's runtime environment, which brings code to the nodes: `working_dir`, `py_modules`, `pip`,
    # `env_vars`.
    runtime_env: dict[str, Any] | None = None
    # The folder for node-local files, which are uploaded to the study's storage. None: the study's
    # folder, or the folder for temporary files on a node that does not see it.
    disk: str | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.cpus is not None:
            raise SpecError(
                f"gpus={self.gpus} and cpus={self.cpus} are both given: a slot is one or the other."
            )
        for name, count in (("gpus", self.gpus), ("cpus", self.cpus)):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise SpecError(f"{name}={count!r} is invalid: must be at least 1.")

        if self.disk is not None and not os.path.isabs(self.disk):
            raise SpecError(
                f"disk={self.disk!r} is invalid: must be an absolute path, the same on every node."
            )

    @property
    def count(self) -> int | None:
        """The number of requested slots; None: all free ones."""
        return self.cpus if self.gpus is None else self.gpus


def parse_ray(slots: object) -> Ray | None:
    """Return the cluster that `slots` means; None if it means this machine.

    The command line writes `"ray"`, `"ray:gpu:8"` or `"ray:cpu:8@10.0.0.1:6379"`.
    """
    if isinstance(slots, Ray):
        return slots
    if not isinstance(slots, str) or not slots.startswith("ray"):
        return None
    kind_and_count, _, address = slots.partition("@")
    options: dict[str, Any] = {"address": address} if address else {}
    match kind_and_count.split(":"):
        case ["ray"]:
            return Ray(**options)
        case ["ray", "gpu" | "cpu" as kind, number] if number.isdigit():
            options[f"{kind}s"] = int(number)
            return Ray(**options)
    raise SpecError(
        f"slots={kind_and_count!r} is invalid: use 'ray' for all free slots of a cluster, "
        "'ray:gpu:8' or 'ray:cpu:8'."
    )


def import_ray() -> ModuleType:
    """Return Ray; raise a SpecError that says how to install it."""
    try:
        import ray
    except ImportError:
        raise SpecError(
            "Ray is not installed, which slots on a Ray cluster need: run "
            "`pip install 'paceline[ray]'` here and on every node."
        ) from None
    module: ModuleType = ray
    return module


def connect_ray(cluster: Ray, namespace: str | None = None) -> bool:
    """Connect to the cluster; return False if this process was connected before."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    try:
        _check_reachable(cluster.address)
        ray.init(
            address=cluster.address,
            namespace=namespace,
            runtime_env=cluster.runtime_env,
            log_to_driver=False,
            logging_level="warning",
        )
    except (OSError, RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0].rstrip(".")
        raise SpecError(
            f"no Ray cluster answers at address={cluster.address!r} ({first}): start one with "
            "`ray start --head`, give its address, or address='local' for one on this machine."
        ) from None
    return True


def _check_reachable(address: str) -> None:
    """Raise an OSError if the address does not answer: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
