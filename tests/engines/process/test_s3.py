"""Checkpoints in S3, against a real server: written, restored elsewhere, collected."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest
from command_line import CommandLine, read_log
from remote_checkpoints import make_options, train_counter
from s3_server import BUCKET, S3Server, run_s3_server

import paceline as pl
from paceline.api.stored import CheckpointPage, fold_log
from paceline.core import events as e
from paceline.core.errors import CheckpointError, PacelineWarning
from paceline.store.storage import open_storage
from paceline.testing.storages import StorageContract
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paceline.core.ports import Storage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach the server as users do: by the usual environment variables."""
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


class TestS3(StorageContract):
    """S3 keeps the contract."""

    run = uuid4().hex

    def make(self, place: str) -> Storage:
        return open_storage(f"s3://{BUCKET}/{self.run}/{place}")


@pytest.fixture
def place() -> str:
    """Return an empty address."""
    return f"s3://{BUCKET}/{uuid4().hex}"


def held(log: list[Any]) -> tuple[Storage, set[str]]:
    """Return where a study keeps its checkpoints, and what its log names."""
    opened = log[0].event
    return open_storage(opened.run.checkpoints or ""), {
        checkpoint_name(*name) for name in fold_log(log).checkpoints.records
    }


def test_a_study_goes_on_from_s3_on_another_machine(tmp_path: Path, place: str) -> None:
    rates = (0.1, 0.2, 0.4)
    with pl.Study(train_counter, **make_options(tmp_path, "one", checkpoints=place)) as study:
        study.group([({"lr": rate}, 3) for rate in rates])
    with pl.Study(train_counter, **make_options(tmp_path, "two", checkpoints=place)) as study:
        ran = study.group([({"lr": rate}, 6) for rate in rates])
        weights = [trial.checkpoint and trial.checkpoint.load()["weight"][0] for trial in ran]
    log = read_log(f"sqlite:///{tmp_path / 'studies.db'}", "moves")
    state = fold_log(log)
    assert (state.epochs_trained, state.repeats) == (6 * len(rates), 0)
    assert weights == pytest.approx([1 - (1 - rate) ** 6 for rate in rates])
    # Whoever is faster than the server leaves out what a later one makes superfluous.
    assert {missed.note for step in log if isinstance(missed := step.event, e.Missed)} <= {
        "a later one was saved before this could be uploaded"
    }
    assert not [step for step in log if isinstance(step.event, e.Spoiled)]


def test_a_result_is_read_where_nothing_was_trained(tmp_path: Path, place: str) -> None:
    given = make_options(
        tmp_path, "one", checkpoints=place, space={"lr": pl.uniform(0.1, 0.9)}, trials=4
    )
    first = pl.tune(train_counter, **given, keep_best=1, policy="fifo").best
    elsewhere = {**given, "files": tmp_path / "two"}
    with pytest.warns(pl.PacelineWarning, match="ended before"):
        again = pl.tune(train_counter, **elsewhere, keep_best=1, policy="fifo").best
    assert first is not None
    assert again is not None
    assert first.checkpoint is not None
    assert again.checkpoint is not None
    assert first.checkpoint.place == str(first.checkpoint.path)
    assert again.checkpoint.place.startswith(place)
    assert again.checkpoint.load() == first.checkpoint.load()


def test_unneeded_checkpoints_are_deleted_from_s3(tmp_path: Path, place: str) -> None:
    given = make_options(
        tmp_path, "one", checkpoints=place, space={"lr": pl.uniform(0.1, 0.9)}, trials=6
    )
    pl.tune(train_counter, **given, keep_best=1, policy="fifo")
    storage, named = held(read_log(given["store"], "moves"))
    assert {stored.name for stored in storage.list()} == named
    assert 1 <= len(named) <= 2


def test_what_no_log_names_is_seen_and_deleted_by_the_command_line(
    tmp_path: Path,
    place: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = make_options(
        tmp_path, "one", checkpoints=place, space={"lr": pl.uniform(0.1, 0.9)}, trials=2
    )
    pl.tune(train_counter, **given)
    storage, named = held(read_log(given["store"], "moves"))
    (tmp_path / "stray").write_bytes(b"x" * 123)
    storage.put("99-1.ckpt", str(tmp_path / "stray"))
    paceline = CommandLine(tmp_path, capsys, monkeypatch)
    listing = ("checkpoints", "moves", "--store", given["store"], "--json")
    refused = paceline(*listing)
    assert (refused.code, f"add --allow {storage.url}" in refused.err) == (2, True)
    ran = paceline(*listing, "--allow", place)
    found = msgspec.json.decode(ran.out, type=CheckpointPage)
    assert (found.place, found.stray_bytes) == (storage.url, 123)
    assert [stray.name for stray in found.strays] == ["99-1.ckpt"]
    assert {stored.name for stored in storage.list()} == named


def test_a_missing_bucket_is_a_clear_error_before_any_training(tmp_path: Path) -> None:
    def never(trial: Any) -> None:  # noqa: ANN401
        (tmp_path / "trained").touch()

    given = make_options(tmp_path, "one", checkpoints="s3://missing-bucket/runs")
    with pytest.raises(CheckpointError, match=r"s3://missing-bucket/runs/.*bucket does not exist"):
        pl.tune(never, space={"lr": pl.uniform(0, 1)}, **given)
    assert not (tmp_path / "trained").exists()


class Cutter:
    """A line to the server that breaks in the middle of whatever is large, while it is told to."""

    def __init__(self, server: S3Server) -> None:
        self._port = int(server.address.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self.cutting = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            onward = socket.create_connection(("127.0.0.1", self._port))
            for ends in ((client, onward, True), (onward, client, False)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(4096):
                passed += len(data)
                if up and self.cutting and passed > 20_000:
                    self.cuts += 1
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def cutter(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutter]:
    cutter = Cutter(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", cutter.address)
    yield cutter
    cutter.close()


def test_an_upload_that_breaks_never_becomes_the_named_checkpoint(
    cutter: Cutter, server: S3Server, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heavy(trial: Any) -> None:  # noqa: ANN401
        state = trial.keep(state={"blob": b"x" * 90_000, "n": 0})
        for _ in trial.epochs():
            state["n"] += 1
            trial.report(loss=trial["lr"] / state["n"])

    cutter.cutting = True
    with pl.Study(heavy, **make_options(tmp_path, "one", checkpoints=place)) as study:
        with pytest.warns(PacelineWarning, match="cannot be written to s3://"):
            (broken,) = study.group([({"lr": 0.1}, 2)])
        assert len(broken.values) == 2, "the trial goes on"
        assert broken.checkpoint is None
        assert cutter.cuts > 0
        log = read_log(f"sqlite:///{tmp_path / 'studies.db'}", "moves")
        assert not [step for step in log if isinstance(step.event, e.Saved)]
        notes = {step.event.note for step in log if isinstance(step.event, e.Missed)}
        assert any("0-2.ckpt cannot be written to s3://" in note for note in notes), notes
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        storage, _ = held(log)
        assert not [stored for stored in storage.list() if stored.name.endswith(".ckpt")]
        cutter.cutting = False
        (whole,) = study.group([({"lr": 0.1}, 4)])
        assert whole.checkpoint is not None
        assert whole.checkpoint.epoch == 4
        names = {stored.name for stored in storage.list()}
        assert whole.checkpoint.path.name in names
        assert "0-2.ckpt" not in names


def test_a_killed_server_costs_checkpoints_but_not_the_study(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_s3_server(tmp_path) as mortal:
        monkeypatch.setenv("AWS_ENDPOINT_URL", mortal.address)
        with pl.Study(train_counter, **make_options(tmp_path, "one", checkpoints=place)) as study:
            (before,) = study.group([({"lr": 0.3}, 2)])
            assert before.checkpoint is not None
            mortal.kill()
            with pytest.warns(PacelineWarning, match="Training goes on without it"):
                (after,) = study.group([({"lr": 0.3}, 4)])
    assert len(after.values) == 4
    log = read_log(f"sqlite:///{tmp_path / 'studies.db'}", "moves")
    assert [step.event.epoch for step in log if isinstance(step.event, e.Saved)] == [1, 2]
