"""An S3 server that denies, fails, is silent or cuts its answers in the middle of a study."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from command_line import read_log
from remote_checkpoints import make_options, train_counter
from s3_server import BUCKET, FaultyFront, S3Server, run_faulty_front, run_s3_server
from waiting import LIMIT_S, wait_for

import paceline as pl
from paceline.core import events as e
from paceline.core.errors import CheckpointError, PacelineWarning
from paceline.store import storage as storages
from paceline.store.storage import check_storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from paceline.core.decisions import Step
    from paceline.machine.state import StudyState


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def front(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyFront]:
    """Lead clients of S3 to a front of the server."""
    with run_faulty_front(server) as front:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", front.address)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield front


@pytest.fixture
def place() -> str:
    """Return an empty address."""
    return f"s3://{BUCKET}/{uuid4().hex}"


DENIED = r"AccessDenied; check the credentials and what they may do there\.$"
FAILED = r"{code}; the storage answered with status {status}, look at its state\.$"


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (403, DENIED),
        (500, FAILED.format(code="InternalError", status=500)),
        (503, FAILED.format(code="SlowDown", status=503)),
    ],
)
def test_what_s3_refuses_is_a_sentence_with_what_to_do(
    front: FaultyFront, place: str, tmp_path: Path, status: int, sentence: str
) -> None:
    (tmp_path / "some").write_bytes(b"x" * 100)
    storage = open_storage(place)
    front.failing = dict.fromkeys(("PUT", "POST", "HEAD", "GET", "DELETE"), status)
    front.left = None
    with pytest.raises(CheckpointError, match=f"cannot be written to {place}: .*{sentence}"):
        storage.put("1-1.ckpt", str(tmp_path / "some"))
    assert front.failed > 0
    front.failing = {}
    assert storage.list() == []
    storage.put("1-1.ckpt", str(tmp_path / "some"))
    assert [stored.name for stored in storage.list()] == ["1-1.ckpt"]


@pytest.mark.parametrize("status", [403, 503])
def test_a_study_goes_on_while_s3_refuses_and_saves_again_afterwards(
    front: FaultyFront, place: str, tmp_path: Path, status: int
) -> None:
    with pl.Study(train_counter, **make_options(tmp_path, "one", checkpoints=place)) as study:
        (before,) = study.group([({"lr": 0.3}, 2)])
        assert before.checkpoint is not None
        front.failing = {"PUT": status, "POST": status}
        with pytest.warns(PacelineWarning, match=r"cannot be written to .* Training goes on"):
            (during,) = study.group([({"lr": 0.3}, 4)])
        assert len(during.values) == 4
        front.failing = {}
        (after,) = study.group([({"lr": 0.3}, 6)])
    assert after.checkpoint is not None
    assert after.checkpoint.epoch == 6
    assert after.checkpoint.load()["weight"][0] == pytest.approx(1 - 0.7**6)


def test_a_failure_that_passes_is_tried_again_and_costs_nothing(
    front: FaultyFront, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_MAX_ATTEMPTS")
    storage = open_storage(place)
    (tmp_path / "some").write_bytes(b"x" * 100)
    front.failing, front.left = {"PUT": 503}, 2
    storage.put("1-1.ckpt", str(tmp_path / "some"))
    assert (front.failed, front.left) == (2, 0)
    storage.get("1-1.ckpt", str(tmp_path / "other"))
    assert (tmp_path / "other").read_bytes() == b"x" * 100


def test_a_download_that_is_cut_never_becomes_the_file(
    front: FaultyFront, place: str, tmp_path: Path
) -> None:
    storage = open_storage(place)
    (tmp_path / "some").write_bytes(b"x" * 90_000)
    storage.put("1-1.ckpt", str(tmp_path / "some"))
    front.failing = {"GET": 0}
    with pytest.raises(CheckpointError, match=r"cannot be read from .*; check the address and"):
        storage.get("1-1.ckpt", str(tmp_path / "other"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some"]
    front.failing = {}
    storage.get("1-1.ckpt", str(tmp_path / "other"))
    assert (tmp_path / "other").read_bytes() == b"x" * 90_000


def test_a_checkpoint_that_cannot_be_fetched_elsewhere_costs_only_its_epochs(
    front: FaultyFront, place: str, tmp_path: Path
) -> None:
    with pl.Study(train_counter, **make_options(tmp_path, "one", checkpoints=place)) as study:
        study.group([({"lr": 0.3}, 3)])
    front.failing = {"GET": 0}
    with pl.Study(train_counter, **make_options(tmp_path, "two", checkpoints=place)) as study:
        (ran,) = study.group([({"lr": 0.3}, 6)])
    assert len(ran.values) == 6
    assert ran.values[-1] == pytest.approx(0.7**12)
    log = read_log(f"sqlite:///{tmp_path / 'studies.db'}", "moves")
    notes = [step.event.note for step in log if isinstance(step.event, e.Spoiled)]
    assert any("cannot be read from" in note for note in notes), notes


@pytest.mark.usefixtures("front")
def test_a_storage_that_is_slow_at_the_start_is_told(
    server: S3Server,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.setattr(storages, "SLOW_S", 0.1)
    storage = open_storage(place)
    checking = threading.Thread(target=check_storage, args=(storage,))
    told = f"{place} has not answered for 0.1 s: the study starts when it does."
    with server.silent():
        checking.start()
        wait_for(lambda: told in [str(each.message) for each in recwarn], "a warning")
    checking.join(LIMIT_S)
    assert not checking.is_alive()
    assert storage.list() == []


@pytest.mark.usefixtures("front")
def test_a_study_whose_storage_falls_silent_ends_at_its_deadline(
    server: S3Server, place: str, tmp_path: Path
) -> None:
    def train(trial: pl.Trial) -> None:
        weight = trial.keep(weight=[0.0])
        for _ in trial.epochs():
            time.sleep(0.01)
            weight[0] += 1
            trial.report(loss=1 / weight[0])

    is_silent = False
    # Long enough for one checkpoint, on a busy machine too.
    for deadline in (3.0, 12.0, 48.0):
        with ExitStack() as silence:

            def watch(
                state: StudyState, steps: Sequence[Step], silence: ExitStack = silence
            ) -> None:
                nonlocal is_silent
                if not is_silent and state.checkpoints.records:
                    is_silent = True
                    silence.enter_context(server.silent())

            folder = tmp_path / f"{deadline:g}"
            folder.mkdir()
            options = make_options(folder, "one", checkpoints=place, epochs=100_000, slots=1)
            given = {**options, "space": {"lr": pl.uniform(0, 1)}, "policy": "fifo"}
            result = pl.Study(train, **given, deadline=deadline).run(watch)
        if is_silent:
            break
    assert is_silent
    assert result.end == "deadline"
    # The best that is told is one whose checkpoint was published.
    assert result.best.checkpoint is not None
    opened = read_log(options["store"], "moves")[0].event
    assert isinstance(opened, e.Opened)
    stored = open_storage(opened.run.checkpoints or "").list()
    assert result.best.checkpoint.path.name in [each.name for each in stored]
