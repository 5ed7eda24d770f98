"""A crash costs only the epochs since the last checkpoint: real processes are killed.

The driver under test is `killable_driver.py`, in a process of its own. After every kill the study
is run again. At its end, its log, its curves and its files are those of an uninterrupted study,
except for the epochs that were trained again according to the log.
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
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killable_driver import EPOCHS, NAME, STUDIES, curve
from waiting import wait_for

from paceline.analysis.summary import find_best
from paceline.api.stored import replay_log
from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import Status
from paceline.machine.invariants import find_violations
from paceline.machine.state import StudyState
from paceline.plan.settings import config_key, setting_at
from paceline.store import open_store
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

    from paceline.core.decisions import Step
    from paceline.core.values import Config

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")


class CrashingStudy:
    """A study whose processes are killed, and which is resumed until it ends."""

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
        self._starts = count()
        self._tags: list[str] = []
        self._environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
            # The folder of the checkpoints if the store is on a server.
            "HOME": str(folder),
            "CRASH_STORE": self._store,
            "CRASH_STUDY": study,
            "CRASH_TRIALS": str(trials),
            "CRASH_AT": "",
            "CRASH_MARK": str(folder / "mark"),
            **{f"CRASH_{name.upper()}": str(value) for name, value in place.items()},
        }

    @property
    def was_killed(self) -> bool:
        """Whether a process reached the place where it kills."""
        return (self.folder / "mark").exists()

    def begin(self) -> subprocess.Popen[str]:
        """Start a driver, which begins or resumes the study."""
        tag = f"{self.folder}-{next(self._starts)}"
        self._tags.append(tag)
        return subprocess.Popen(
            [sys.executable, "-c", "from killable_driver import main; main()"],
            env={**self._environ, "CRASH_TAG": tag},
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> int:
        """Run a driver until it ends or is killed, and return its exit code."""
        with self.begin() as driver:
            driver.communicate()
        return driver.returncode

    def list_processes(self) -> set[int]:
        """Return all running processes of the newest driver."""
        return find_processes(self._tags[-1])

    def wait_for_exit(self) -> None:
        """Wait until no process of any driver runs."""
        for tag in self._tags:
            wait_for(partial(has_ended, tag), f"the processes of {tag} to exit")
        del self._tags[:]

    def log(self) -> list[Step]:
        with closing(open_store(self._store, create=False)) as store:
            return list(store.read(NAME)) if NAME in store.studies() else []

    def files(self) -> dict[str, Path]:
        (folder,) = (path for path in self.folder.rglob("checkpoints") if path.is_dir())
        return {path.name: path for path in folder.iterdir()}

    def check(self) -> None:
        """Check the log, the curves and the files of the finished study."""
        log = self.log()
        names = ("AskedGenerator", "ForecastPolicy", "KillingCurveModel")
        parts = [f"killable_driver:{name}" for name in names]
        assert replay_log(log, parts=parts).difference is None
        state = StudyState()
        for step in log:
            for entry in step.entries:
                state.apply(entry)
        assert find_violations(state) == []
        assert state.end is not None
        assert state.end.cause is d.EndCause.QUIET
        assert len(state.trials) == self.trials
        for trial in state.trials:
            assert trial.status is not Status.FAILED
            assert list(trial.losses) == curve(trial.config, trial.epoch)
        # Epochs that were trained again gave the same numbers, and none was out of order.
        assert (state.mismatches, state.strays) == (0, 0)
        check_starts(log)
        found = {name: digest(path) for name, path in self.files().items()}
        assert found == {
            checkpoint_name(*name): file.digest for name, file in state.checkpoints.records.items()
        }
        assert find_best(state).checkpoint is not None  # type: ignore[union-attr]


def find_processes(tag: str) -> set[int]:
    """Return the running processes with this tag; one that is only to be reaped does not run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"CRASH_TAG={tag}\0".encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def has_ended(tag: str) -> bool:
    return not find_processes(tag)


def digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=16).hexdigest()


def check_starts(log: list[Step]) -> None:
    """Check that every launch starts from the newest checkpoint and trains without a gap."""
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


def find_lost_attempts(log: list[Step]) -> dict[int, int]:
    """Return the attempts that were lost or failed, each with its last safe epoch."""
    safe: dict[int, int] = {}
    lost: dict[int, int] = {}
    for step in log:
        match step.event:
            case e.Saved(attempt=attempt, epoch=epoch):
                safe[attempt] = epoch
            case e.Ended(attempt=attempt, cause=e.Cause.LOST | e.Cause.FAILED):
                lost[attempt] = safe.get(attempt, 0)
    return lost


def prefix(config: Config, epochs: int) -> tuple[bytes, ...]:
    return tuple(config_key(setting_at(config, epoch)) for epoch in range(epochs))


def slow(*values: object) -> ParameterSet:
    return pytest.param(*values, marks=pytest.mark.slow)


# Every place and every victim once in each run; all combinations in `make test-all`.
PLACES = [
    ("asha", "before append", "driver", 1),
    *(
        slow("asha", f"{when} append", "driver", after)
        for when, after in (("before", 0), ("before", 9), ("after", 0), ("after", 1), ("after", 9))
    ),
    ("fifo", "before rename", "worker", 1),
    *(slow("fifo", "before rename", victim, 1) for victim in ("driver", "forkserver", "all")),
    ("fifo", "after rename", "all", 1),
    *(slow("fifo", "after rename", victim, 1) for victim in ("driver", "worker", "forkserver")),
    ("fifo", "in report", "forkserver", 2),
    *(slow("fifo", "in report", victim, 2) for victim in ("driver", "worker", "all")),
    slow("fifo", "idle", "driver", 0),
    ("asked", "forecast", "driver", 0),
    ("asked", "proposal", "driver", 0),
]


@pytest.mark.parametrize(("study", "place", "victim", "after"), PLACES)
def test_a_study_resumes_after_a_kill_at_a_named_place(
    study: str, place: str, victim: str, after: int, tmp_path: Path
) -> None:
    crashing = CrashingStudy(tmp_path, study, 5, at=place, victim=victim, after=after)
    code = crashing.run()
    assert crashing.was_killed
    if victim in ("driver", "all"):
        assert code == -signal.SIGKILL
        code = crashing.run()
    assert code == 0
    crashing.wait_for_exit()
    crashing.check()


def read_reporters(driver: subprocess.Popen[str]) -> Iterator[int]:
    """Yield, for each round of a driver's loop, the process that reported in it, or 0."""
    assert driver.stdout is not None
    for line in driver.stdout:
        yield int(line.split()[1])


KILLS = 10
VICTIMS = ("driver", "driver", "worker", "forkserver", "all")


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (1, "sqlite"),
        *(slow(seed, "sqlite") for seed in range(30) if seed != 1),
        *(slow(seed, "postgres") for seed in range(10)),
    ],
)
def test_a_study_resumes_after_ten_random_kills(
    seed: int, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(seed)
    study = ("fifo", "asha", "shared", "fifo", "asked")[seed % 5]
    kills: Counter[str] = Counter()
    # One study is long enough, unless this process gets less CPU time than those of the study.
    for number in count():
        if kills.total() >= KILLS:
            break
        (tmp_path / str(number)).mkdir()
        url = request.getfixturevalue("postgres").url() if kind == "postgres" else None
        crashing = CrashingStudy(tmp_path / str(number), study, STUDIES[study]["trials"], url)
        code = -signal.SIGKILL
        while code != 0 and kills.total() < KILLS:
            code = run_and_kill(crashing, rng, kills)
            assert code in (0, -signal.SIGKILL)
            if rng.random() < 0.5:
                crashing.wait_for_exit()  # otherwise the next driver starts next to the old workers
        assert crashing.run() == 0
        crashing.wait_for_exit()
        crashing.check()


def run_and_kill(crashing: CrashingStudy, rng: random.Random, kills: Counter[str]) -> int:
    """Run a driver, kill processes at random until it ends, and return its exit code."""
    with crashing.begin() as driver:
        rounds = read_reporters(driver)
        while driver.poll() is None and kills.total() < KILLS:
            victim = rng.choice(VICTIMS)
            last = find_reporter(rounds, rng.randrange(8))
            time.sleep(rng.uniform(0.0, 0.01))  # a random instant
            if kill(crashing, driver, victim, last):
                kills[victim] += 1
            if last is None or victim in ("driver", "all"):
                break
        for _ in rounds:
            pass
    return driver.returncode


def find_reporter(rounds: Iterator[int], least: int) -> int | None:
    """Wait for `least` rounds and return the last process that reported; None: the driver ended."""
    last = 0
    for number, pid in enumerate(rounds):
        last = pid or last
        if number >= least and last:
            return last
    return None


def kill(crashing: CrashingStudy, driver: Any, victim: str, worker: int | None) -> bool:  # noqa: ANN401
    """Kill the victim; return False if it has ended already."""
    if driver.poll() is not None:
        return False
    if victim == "driver":
        pids = {driver.pid}
    elif victim == "all":
        pids = crashing.list_processes()
    else:
        forkserver = [pid for pid in crashing.list_processes() if find_parent(pid) == driver.pid]
        pids = {worker or 0} & crashing.list_processes() if victim == "worker" else set(forkserver)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def find_parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


# In the trunk, at the branches, in the leaves: after this many reports or checkpoints of a worker.
MOMENTS = [
    ("in report", "all", 1),
    slow("in report", "worker", 2),
    slow("in report", "driver", 3),
    slow("in report", "forkserver", 6),
    slow("before rename", "all", 0),
    ("after rename", "driver", 1),
]


@pytest.mark.parametrize(("place", "victim", "after"), MOMENTS)
def test_a_crash_in_a_tree_of_stages_costs_the_running_epochs_and_no_others(
    place: str, victim: str, after: int, tmp_path: Path
) -> None:
    # Nine schedules share their beginning, and all are known when the first is launched.
    crashing = CrashingStudy(tmp_path, "shared", 9, at=place, victim=victim, after=after)
    code = crashing.run()
    assert crashing.was_killed
    assert code == (-signal.SIGKILL if victim in ("driver", "all") else 0)
    assert crashing.run() == 0
    crashing.wait_for_exit()
    crashing.check()
    log = crashing.log()
    lost = find_lost_attempts(log)
    for path, attempts in trained_twice(log).items():
        # One of the attempts was lost before it had saved the epoch.
        assert any(lost.get(attempt, len(path)) < len(path) for attempt in attempts), path
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


def test_without_kills_every_epoch_is_trained_once(tmp_path: Path) -> None:
    crashing = CrashingStudy(tmp_path, "fifo", 4)
    assert crashing.run() == 0
    crashing.check()
    reports = [step for step in crashing.log() if isinstance(step.event, e.Reported)]
    assert len(reports) == 4 * EPOCHS
