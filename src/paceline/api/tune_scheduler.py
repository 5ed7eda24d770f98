"""Our policies as schedulers of Ray Tune: it runs the trials, a policy says what becomes of them.

Knows how a policy is put together for that. What Tune calls, and when, is the integration's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paceline.api.options import deadline_s
from paceline.api.parts import build, parse_part
from paceline.core.errors import SpecError
from paceline.core.values import Budget, Part, StudySpec, Target
from paceline.engines.outside import Comers, Outside
from paceline.machine.machine import Brains, Machine

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from paceline.core.values import Mode

# They need what Tune's schedulers cannot do: several slots for a trial, and trials that branch.
_INEXPRESSIBLE = frozenset({"pbt"})


def tune_scheduler(
    policy: str | Part,
    *,
    metric: str,
    mode: Mode,
    epochs: int,
    target: float | None = None,
    deadline: float | str | timedelta | datetime | None = None,
    curves: str = "pfn",
) -> Any:  # noqa: ANN401 - Ray's class, which is there only where Ray is
    """Return a policy as a scheduler for `ray.tune.TuneConfig(scheduler=…)`.

    `epochs` is the last report of a trial, as `max_t` is for Tune's own schedulers. At the target
    or the deadline all trials are stopped. A policy that pauses needs trainables with checkpoints.
    """
    part = parse_part(policy) if isinstance(policy, str) else policy
    if part.name in _INEXPRESSIBLE:
        raise SpecError(
            f"policy {part.name} branches trials, which Tune's schedulers cannot: give another, or "
            "run the study with paceline.tune."
        )
    from paceline.integrations import ray_tune  # only where Ray is asked for

    spec = StudySpec(
        name="tune",
        metric=metric,
        mode=mode,
        epochs=epochs,
        policy=part,
        generator=Part("comers"),
        curves=parse_part(curves),
        budget=Budget(
            target=None if target is None else Target(target), deadline_s=deadline_s(deadline)
        ),
        retries=0,
    )
    brains = Brains(
        policy=build("policy", part),
        generator=Comers(),
        allocator=build("allocator", Part("fixed")),
    )
    study = Outside(Machine(brains), spec, build("curve model", spec.curves), time.monotonic)
    return ray_tune.Scheduler(study, metric)
