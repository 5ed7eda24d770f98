"""The brains of a machine, as a spec names them.

Knows which part of a spec is which brain, of one study or of several that are driven as one. Does
not know what drives the machine: live and simulated studies have the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.api.parts import build
from paceline.machine.machine import Brains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.values import Part, StudySpec
    from paceline.machine.fitting import Asked, Told


def brains_of(
    spec: StudySpec, generators: Sequence[Part] = (), needs: Asked | Told | None = None
) -> Brains:
    """Return the brains a spec names; generators may be given with more than a log can hold."""
    given = generators or [study.generator for study in spec.studies]
    (policy, generator), *others = [
        (build("policy", study.policy), build("generator", part))
        for study, part in zip(spec.studies, given, strict=True)
    ]
    return Brains(policy, generator, build("allocator", spec.allocator), tuple(others), needs)
