"""Tuning policies, one small module each. They read the study and set goals; they run nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.lazy import import_lazily

if TYPE_CHECKING:
    from paceline.policies.asha import Asha as Asha
    from paceline.policies.asha_stop import AshaStop as AshaStop
    from paceline.policies.bandit import Bandit as Bandit
    from paceline.policies.barrier import Barrier as Barrier
    from paceline.policies.early_term import EarlyTerm as EarlyTerm
    from paceline.policies.fifo import Fifo as Fifo
    from paceline.policies.hypersched import HyperSched as HyperSched
    from paceline.policies.kill_below import KillBelow as KillBelow
    from paceline.policies.median import Median as Median
    from paceline.policies.pasha import Pasha as Pasha
    from paceline.policies.pbt import Pbt as Pbt
    from paceline.policies.planner.planner import Planner as Planner
    from paceline.policies.plateau import Plateau as Plateau
    from paceline.policies.pop import Pop as Pop
    from paceline.policies.successive_halving import Hyperband as Hyperband
    from paceline.policies.successive_halving import Sha as Sha

# The module of each public class.
_MODULES = {
    "Asha": "paceline.policies.asha",
    "AshaStop": "paceline.policies.asha_stop",
    "Bandit": "paceline.policies.bandit",
    "Barrier": "paceline.policies.barrier",
    "EarlyTerm": "paceline.policies.early_term",
    "Fifo": "paceline.policies.fifo",
    "HyperSched": "paceline.policies.hypersched",
    "Hyperband": "paceline.policies.successive_halving",
    "KillBelow": "paceline.policies.kill_below",
    "Median": "paceline.policies.median",
    "Pasha": "paceline.policies.pasha",
    "Pbt": "paceline.policies.pbt",
    "Planner": "paceline.policies.planner.planner",
    "Plateau": "paceline.policies.plateau",
    "Pop": "paceline.policies.pop",
    "Sha": "paceline.policies.successive_halving",
}

__all__ = sorted(_MODULES)

__getattr__ = import_lazily(__name__, _MODULES)
