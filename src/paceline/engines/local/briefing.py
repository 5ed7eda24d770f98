"""What each process of an attempt is told at its birth.

Knows how a launch, the study's spec, the shelf and the devices become the first message to each
worker: which of them it is, where it trains, what it starts from and where that lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.plan.saving import SAVE_SHARE
from paceline.worker.channel import Begin
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.decisions import Launch
    from paceline.core.values import Config, StudySpec
    from paceline.engines.local.ground import Ground
    from paceline.engines.local.shelf import Shelf


class Briefing:
    """Writes first messages."""

    def __init__(self, spec: StudySpec, devices: Ground, shelf: Shelf) -> None:
        self._spec = spec
        self._devices = devices
        self._shelf = shelf

    def of(self, launch: Launch, config: Config, best: float | None) -> Iterator[Begin]:
        """Yield what to tell each process, by rank; `best` is the study's best loss so far."""
        spec, shelf, devices = self._spec, self._shelf, self._devices
        seed = config.get("seed")
        homes = [devices.away(slot) for slot in launch.slots]
        checkpoint, digest, missing = None, "", False
        if launch.source is not None:
            name = (launch.source, launch.start)
            checkpoint, digest = name_of(*name), shelf.digest(name)
            missing = None in homes and not shelf.wanted(launch.attempt, name)
        for rank, away in enumerate(homes):
            yield Begin(
                attempt=launch.attempt,
                trial=launch.trial,
                config=config,
                epochs=spec.epochs,
                start=launch.start,
                goal=launch.goal,
                save_at=launch.save_at,
                seed=seed if isinstance(seed, int) else spec.seed,
                folder=str(shelf.checkpoints) if away is None else away.checkpoints,
                checkpoint=checkpoint,
                digest=digest,
                # A far node looks for itself whether it has it.
                awaits=missing if away is None else checkpoint is not None,
                metric=spec.metric,
                sign=spec.sign,
                best=best,
                patience=SAVE_SHARE,
                width=launch.width,
                rank=rank,
                slot_bytes=devices.slot_bytes(launch.slots[rank]) if spec.pack > 1 else 0,
                device=devices.device,
                threads=devices.threads(launch.width),
                environ=devices.variables(launch.slots, launch.width, rank),
                log=str((away or shelf).log(launch.attempt)),
            )
