"""A crash costs nothing but the epochs since the last checkpoint: real processes, really killed.

The driver under test is `mortal.py`, a process of its own. After every death the study is run
again, and at its end its log, its curves and its files are what an uninterrupted study would have
left, but for the epochs that its log says were trained again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mortal import EPOCHS, NAME, STUDIES, curve

from paceline.analysis.summary import best_of
from paceline.api.stored import replayed
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import Status
from paceline.machine.invariants import complaints
from paceline.machine.state import StudyState
from paceline.plan.settings import key, setting_at
from paceline.store import open_store
from paceline.worker.trial import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

    from paceline.core.decisions import Step
    from paceline.core.values import Config

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="nobody tells who runs")


class Mortal:
    """A study that is killed and taken up again, until it ends."""

    def __init__(
        self,
        folder: Path,
        study: str,
        trials: int,
        url: str | None = None,
        **place: Any,  # noqa: ANN401
    ) -> None:
        self.folder = folder
        self.trials = trials
        self._store = url or str(folder / "runs.db")
        self._lives = count()
        self._tags: list[str] = []
        self._environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
            # Where checkpoints lie if the store is on a server.
            "HOME": str(folder),
            "CRASH_STORE": self._store,
            "CRASH_STUDY": study,
            "CRASH_TRIALS": str(trials),
            "CRASH_AT": "",
            "CRASH_MARK": str(folder / "mark"),
            **{f"CRASH_{name.upper()}": str(value) for name, value in place.items()},
        }

    @property
    def died(self) -> bool:
        """Whether somebody came to the place of death."""
        return (self.folder / "mark").exists()

    def begin(self) -> subprocess.Popen[str]:
        """Start a driver, the first or the next."""
        tag = f"{self.folder}-{next(self._lives)}"
        self._tags.append(tag)
        return subprocess.Popen(
            [sys.executable, "-c", "from mortal import main; main()"],
            env={**self._environ, "CRASH_TAG": tag},
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> int:
        """Run a driver until it ends or dies, and return how it went."""
        with self.begin() as driver:
            driver.communicate()
        return driver.returncode

    def everybody(self) -> set[int]:
        """Return every process of the newest driver that still lives."""
        return of_tag(self._tags[-1])

    def nobody_is_left(self) -> None:
        """Wait until no driver has left a process behind."""
        for tag in self._tags:
            for _ in range(3000):
                left = of_tag(tag)
                if not left:
                    break
                time.sleep(0.01)
            assert not left, f"{tag} left {left}"
        del self._tags[:]

    def log(self) -> list[Step]:
        with closing(open_store(self._store, create=False)) as store:
            return list(store.read(NAME)) if NAME in store.studies() else []

    def files(self) -> dict[str, Path]:
        (folder,) = (path for path in self.folder.rglob("checkpoints") if path.is_dir())
        return {path.name: path for path in folder.iterdir()}

    def is_sound(self) -> None:
        """Hold the finished study against everything that is promised."""
        log = self.log()
        assert replayed(log).difference is None
        state = StudyState()
        for step in log:
            for entry in step.entries:
                state.apply(entry)
        assert complaints(state) == []
        assert state.end is not None
        assert state.end.cause is d.EndCause.QUIET
        assert len(state.trials) == self.trials
        for trial in state.trials:
            assert trial.status is not Status.FAILED
            assert list(trial.losses) == curve(trial.config, trial.epoch)
        # Epochs that were trained again gave the very same numbers, and none came out of turn.
        assert (state.mismatches, state.strays) == (0, 0)
        costs_only_unsaved_epochs(log)
        found = {name: digest(path) for name, path in self.files().items()}
        assert found == {name_of(*name): file.digest for name, file in state.files.files.items()}
        assert best_of(state).checkpoint is not None  # type: ignore[union-attr]


def of_tag(tag: str) -> set[int]:
    """Return the processes that carry this tag and run: one that is only to be reaped does not."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"CRASH_TAG={tag}\0".encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=16).hexdigest()


def costs_only_unsaved_epochs(log: list[Step]) -> None:
    """Every launch goes on from the newest checkpoint there is, and trains on without a gap."""
    configs: list[Config] = []
    leads: dict[int, int] = {}
    at: dict[int, int] = {}
    saved: dict[tuple[int, int], tuple[bytes, ...]] = {}
    for step in log:
        match step.event:
            case e.Reported(attempt=attempt, epoch=epoch):
                assert epoch == at[attempt] + 1
                at[attempt] = epoch
            case e.Saved(attempt=attempt, epoch=epoch):
                assert epoch == at[attempt]
                saved[attempt, epoch] = prefix(configs[leads[attempt]], epoch)
        for decision in step.decisions:
            match decision:
                case d.Open(config=config):
                    configs.append(config)
                case d.Launch(attempt=attempt, trial=trial, start=start, source=source):
                    leads[attempt], at[attempt] = trial, start
                    usable = [
                        epoch
                        for (_, epoch), path in saved.items()
                        if path == prefix(configs[trial], epoch)
                    ]
                    assert start == max(usable, default=0), decision
                    assert source is None or (source, start) in saved
                case d.Amend(attempt=attempt, trial=trial):
                    leads[attempt] = trial
                case d.Drop(checkpoints=names):
                    for name in names:
                        del saved[name]


def trained_twice(log: list[Step]) -> dict[tuple[bytes, ...], set[int]]:
    """Return each epoch, by all settings up to it, that more than one attempt has reported."""
    configs: list[Config] = []
    leads: dict[int, int] = {}
    seen: dict[tuple[bytes, ...], set[int]] = {}
    for step in log:
        if isinstance(step.event, e.Reported):
            path = prefix(configs[leads[step.event.attempt]], step.event.epoch)
            seen.setdefault(path, set()).add(step.event.attempt)
        for decision in step.decisions:
            match decision:
                case d.Open(config=config):
                    configs.append(config)
                case d.Launch(attempt=attempt, trial=trial) | d.Amend(attempt=attempt, trial=trial):
                    leads[attempt] = trial
    return {path: attempts for path, attempts in seen.items() if len(attempts) > 1}


def unsaved_at_death(log: list[Step]) -> dict[int, int]:
    """Return the attempts that were lost or failed, each with its last safe epoch."""
    safe: dict[int, int] = {}
    gone: dict[int, int] = {}
    for step in log:
        match step.event:
            case e.Saved(attempt=attempt, epoch=epoch):
                safe[attempt] = epoch
            case e.Ended(attempt=attempt, cause=e.Cause.LOST | e.Cause.FAILED):
                gone[attempt] = safe.get(attempt, 0)
    return gone


def prefix(config: Config, epochs: int) -> tuple[bytes, ...]:
    return tuple(key(setting_at(config, epoch)) for epoch in range(epochs))


PLACES = [
    *(("asha", f"{when} append", "driver", n) for when in ("before", "after") for n in (0, 1, 9)),
    *(
        ("fifo", f"{when} rename", victim, 1)
        for when in ("before", "after")
        for victim in ("driver", "worker", "nursery", "all")
    ),
    *(("fifo", "in report", victim, 2) for victim in ("driver", "worker", "nursery", "all")),
    ("fifo", "idle", "driver", 0),
    ("asked", "forecast", "driver", 0),
    ("asked", "proposal", "driver", 0),
]


@pytest.mark.parametrize(("study", "place", "victim", "after"), PLACES)
def test_a_study_goes_on_after_a_death_at_a_named_place(
    study: str, place: str, victim: str, after: int, tmp_path: Path
) -> None:
    mortal = Mortal(tmp_path, study, 5, at=place, victim=victim, after=after)
    code = mortal.run()
    assert mortal.died
    if victim in ("driver", "all"):
        assert code == -signal.SIGKILL
        code = mortal.run()
    assert code == 0
    mortal.nobody_is_left()
    mortal.is_sound()


def said(driver: subprocess.Popen[str]) -> Iterator[int]:
    """Yield, for each round of a driver's loop, the process that reported in it, or 0."""
    assert driver.stdout is not None
    for line in driver.stdout:
        yield int(line.split()[1])


KILLS = 10
VICTIMS = ("driver", "driver", "worker", "nursery", "all")


def slow(*values: object) -> ParameterSet:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        *((seed, "sqlite") for seed in range(3)),
        *(slow(seed, "sqlite") for seed in range(3, 60)),
        # The kind of study that the others of every run leave out.
        (4, "postgres"),
        *(slow(seed, "postgres") for seed in range(20) if seed != 4),
    ],
)
def test_a_study_goes_on_after_ten_deaths_at_random(
    seed: int, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(seed)
    study = ("fifo", "asha", "shared", "fifo", "asked")[seed % 5]
    kills: Counter[str] = Counter()
    # One study is long enough, unless this process is starved while the study's are not.
    for number in count():
        if kills.total() >= KILLS:
            break
        (tmp_path / str(number)).mkdir()
        url = request.getfixturevalue("cluster").url() if kind == "postgres" else None
        mortal = Mortal(tmp_path / str(number), study, STUDIES[study]["trials"], url)
        code = -signal.SIGKILL
        while code != 0 and kills.total() < KILLS:
            code = haunted(mortal, rng, kills)
            assert code in (0, -signal.SIGKILL)
            if rng.random() < 0.5:
                mortal.nobody_is_left()  # else the next one begins beside the last one's workers
        assert mortal.run() == 0
        mortal.nobody_is_left()
        mortal.is_sound()


def haunted(mortal: Mortal, rng: random.Random, kills: Counter[str]) -> int:
    """Run a driver and kill at random until it is gone; return how it went."""
    with mortal.begin() as driver:
        rounds = said(driver)
        while driver.poll() is None and kills.total() < KILLS:
            victim = rng.choice(VICTIMS)
            last = reporter(rounds, rng.randrange(8))
            time.sleep(rng.uniform(0.0, 0.01))  # any instant: this is no waiting for anything
            if kill(mortal, driver, victim, last):
                kills[victim] += 1
            if last is None or victim in ("driver", "all"):
                break
        for _ in rounds:
            pass
    return driver.returncode


def reporter(rounds: Iterator[int], least: int) -> int | None:
    """Let at least so many rounds pass, and return who reported last; None: the driver ended."""
    last = 0
    for number, pid in enumerate(rounds):
        last = pid or last
        if number >= least and last:
            return last
    return None


def kill(mortal: Mortal, driver: Any, victim: str, worker: int | None) -> bool:  # noqa: ANN401
    """Kill; False where whoever was to die is gone already."""
    if driver.poll() is not None:
        return False
    if victim == "driver":
        pids = {driver.pid}
    elif victim == "all":
        pids = mortal.everybody()
    else:
        nursery = [pid for pid in mortal.everybody() if parent(pid) == driver.pid]
        pids = {worker or 0} & mortal.everybody() if victim == "worker" else set(nursery)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


# In the trunk, at the branches, in the leaves: so many reports or checkpoints into a worker.
MOMENTS = [
    ("in report", "all", 1),
    ("in report", "worker", 2),
    ("in report", "driver", 3),
    ("in report", "nursery", 6),
    ("before rename", "all", 0),
    ("after rename", "driver", 1),
]


@pytest.mark.parametrize(("place", "victim", "after"), MOMENTS)
def test_a_crash_in_a_tree_of_stages_costs_the_running_epochs_and_no_others(
    place: str, victim: str, after: int, tmp_path: Path
) -> None:
    # Nine schedules begin alike, and all of them are known when the first is launched.
    mortal = Mortal(tmp_path, "shared", 9, at=place, victim=victim, after=after)
    code = mortal.run()
    assert mortal.died
    assert code == (-signal.SIGKILL if victim in ("driver", "all") else 0)
    assert mortal.run() == 0
    mortal.nobody_is_left()
    mortal.is_sound()
    log = mortal.log()
    dead = unsaved_at_death(log)
    for path, attempts in trained_twice(log).items():
        # One of them trained it first, was alive when somebody died, and had not saved it yet.
        assert any(dead.get(attempt, len(path)) < len(path) for attempt in attempts), path
    distinct = {
        prefix(step.config, epoch)
        for entries in log
        for step in entries.decisions
        if isinstance(step, d.Open)
        for epoch in range(1, EPOCHS + 1)
    }
    reports = [step.event for step in log if isinstance(step.event, e.Reported)]
    running = sum(len(attempts) - 1 for attempts in trained_twice(log).values())
    assert len(reports) == len(distinct) + running


def test_every_epoch_that_a_study_needs_is_trained_once_where_nobody_dies(tmp_path: Path) -> None:
    mortal = Mortal(tmp_path, "fifo", 4)
    assert mortal.run() == 0
    mortal.is_sound()
    reports = [step for step in mortal.log() if isinstance(step.event, e.Reported)]
    assert len(reports) == 4 * EPOCHS
