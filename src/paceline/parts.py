"""Everything that an author of a policy, generator, allocator or curve model imports.

Knows where the public names live. Holds no code of its own.
"""

from __future__ import annotations

from paceline.core.base_part import BasePart
from paceline.core.decisions import (
    AnyDecision,
    AskForecast,
    Close,
    Cut,
    End,
    EndCause,
    Entry,
    Go,
    Open,
    Pause,
    Stop,
    WakeAt,
)
from paceline.core.errors import SpecError
from paceline.core.events import (
    AnyEvent,
    CapacityChanged,
    Cause,
    Ended,
    Forecasted,
    Opened,
    Proposed,
    Recalled,
    Reported,
    Saved,
    Woke,
)
from paceline.core.forecast_quantiles import LEVELS, Forecast
from paceline.core.ports import (
    Allocator,
    ChoosingPolicy,
    CurveModel,
    Demand,
    Demands,
    Fork,
    Generator,
    History,
    Other,
    Pick,
    Policy,
    Verdict,
    see_nothing,
)
from paceline.core.rng import Stream, stream
from paceline.core.space import Space
from paceline.core.values import NO_LOSS, Config, Part, Status, StudySpec, Value
from paceline.core.views import StudyView, TrialView

__all__ = [
    "LEVELS",
    "NO_LOSS",
    "Allocator",
    "AnyDecision",
    "AnyEvent",
    "AskForecast",
    "BasePart",
    "CapacityChanged",
    "Cause",
    "ChoosingPolicy",
    "Close",
    "Config",
    "CurveModel",
    "Cut",
    "Demand",
    "Demands",
    "End",
    "EndCause",
    "Ended",
    "Entry",
    "Forecast",
    "Forecasted",
    "Fork",
    "Generator",
    "Go",
    "History",
    "Open",
    "Opened",
    "Other",
    "Part",
    "Pause",
    "Pick",
    "Policy",
    "Proposed",
    "Recalled",
    "Reported",
    "Saved",
    "Space",
    "SpecError",
    "Status",
    "Stop",
    "Stream",
    "StudySpec",
    "StudyView",
    "TrialView",
    "Value",
    "Verdict",
    "WakeAt",
    "Woke",
    "see_nothing",
    "stream",
]
