"""A study that runs in one folder, watched and controlled from another through its store."""

from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from command_line import SCRIPT, CommandLine, CommandResult, make_environment, read_log, run_command
from postgres_server import PASSWORD, PASSWORD_USER, end_sessions
from running_command import RunningCommand, write_study_file
from terminal import TerminalCommand

from paceline.api.stored import replay_log
from paceline.core.events import Resumed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.postgres import PostgresServer


class Site:
    """Two folders that share only the address of a store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.here, self.there = folder / "here", folder / "there"
        for each in (self.here, self.there):
            each.mkdir()
        self.file = write_study_file(self.here)

    def hold(self) -> None:
        """Hold trials in their third epoch."""
        (self.here / "hold").touch()

    def release(self) -> None:
        """Release the trials."""
        (self.here / "hold").unlink()

    def run(self, *more: str) -> RunningCommand:
        """Run the study in the first folder."""
        command = ("paceline", "run", "study.py", "--name", "it", "--store", self.url, *more)
        return RunningCommand(self.here, *command)

    def ask(self, command: str, *arguments: str | Path) -> CommandResult:
        """Run a command in the other folder."""
        return run_command(self.there, command, *arguments, "--store", self.url)


def sentences(ran: CommandResult) -> list[str]:
    """Return the lines without new best values and counts, which depend on when they are read."""
    lines = ran.out[: ran.out.index("╭")].splitlines()
    return [line for line in lines if "new best" not in line and " trials: " not in line]


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Two folders and a store, of each kind."""
    if request.param == "postgres":
        return Site(tmp_path, request.getfixturevalue("postgres").url())
    return Site(tmp_path, f"sqlite:///{tmp_path}/runs.db")


@pytest.fixture
def server_site(postgres: PostgresServer, tmp_path: Path) -> Site:
    """Two folders and a store on a server."""
    return Site(tmp_path, postgres.url())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let commands receive Ctrl-C even if the tests ignore it, as in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_running_study_is_watched_to_its_end_from_another_folder(site: Site) -> None:
    site.hold()
    watch = ("watch", "it", "--store", site.url)
    with site.run("--policy", "fifo", "--no-report") as running:
        running.until("new best")
        with RunningCommand(site.there, "paceline", *watch) as watching:
            watcher = TerminalCommand((SCRIPT, *watch), site.there, make_environment(site.there))
            watcher.until("2/2 slots busy")
            watcher.process.send_signal(signal.SIGINT)
            assert watcher.close() == 130
            assert "paceline: stopped watching; study 'it' goes on" in watcher.output
            # The study still runs, and the other watcher goes on.
            site.release()
            seen = watching.end()
        ran = running.end()
    assert (ran.code, seen.code, seen.err) == (0, 0, "")
    assert sentences(seen) == sentences(ran)
    assert "the study ends" in sentences(seen)[-1]
    assert "ended: quiet" in seen.out


def test_watching_ends_if_the_study_has_no_driver(site: Site) -> None:
    site.hold()
    with site.run() as running:
        running.until("new best")
        running.signal(signal.SIGKILL)
        running.end()
    seen = site.ask("watch", "it")
    assert seen.code == 2
    assert "new best" in seen.out
    assert "is unfinished, but not running: resume it with `paceline resume it --store" in seen.err


def test_a_study_on_a_server_is_controlled_from_another_folder(
    server_site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server_site.hold()
    here = CommandLine(server_site.there, capsys, monkeypatch)
    at = ("--store", server_site.url)
    with server_site.run("--trials", "20", "--policy", "fifo") as running:
        running.until("2 slots are available")
        driver = f"process {running.pid} on {socket.gethostname()}"
        assert json.loads(here("ls", "--json", *at).out)["studies"][0]["name"] == "it"
        assert json.loads(here("show", "it", "--json", *at).out)["study"]["end"] is None
        more = server_site.ask("slots", "it", "+2")
        assert more.out == f"asked study 'it' to go from 2 to 4 slots ({driver}).\n"
        running.until("4 slots are available")
        second = run_command(
            server_site.there, "run", server_site.file, "--name", "it", "--store", server_site.url
        )
        assert (second.code, second.out) == (2, "")
        assert f"is running ({driver})" in second.err
        again = server_site.ask("resume", "it", server_site.file, "--no-report")
        assert (again.code, again.out) == (2, "")
        assert (
            f"study 'it' in {server_site.url} is being written by {driver}: wait for it to end"
            in again.err
        )
        stop = server_site.ask("stop", "it")
        assert stop.out == f"asked study 'it' to stop ({driver}).\n"
        ran = running.end()
    assert ran.code == 0
    assert "ended       command: a command asked for it" in ran.out
    assert here("best", "it", *at).code == here("story", "it", *at).code == 0
    assert here("report", "it", *at) == (0, "it.html\n", "")
    assert here("replay", "it", *at).out.startswith("identical: ")


def test_a_killed_study_is_resumed_with_its_address_and_its_file(
    server_site: Site,
) -> None:
    server_site.hold()
    with server_site.run("--no-report") as running:
        running.until("new best")
        running.signal(signal.SIGKILL)
        running.end()
    server_site.release()
    # The log has the path of the file, but the server may be of another: the file is an argument.
    refused = server_site.ask("resume", "it", "--no-report")
    assert refused.code == 2
    assert f"give it: `paceline resume it {server_site.file}`" in refused.err
    resumed = server_site.ask("resume", "it", server_site.file, "--no-report")
    assert (resumed.code, resumed.err) == (0, "")
    log = read_log(server_site.url, "it")
    assert any(isinstance(step.event, Resumed) for step in log)
    assert replay_log(log).difference is None
    assert server_site.ask("resume", "it").out.startswith("study 'it' has ended: ")


def test_a_disconnected_driver_stops_if_another_driver_has_its_study(
    server_site: Site, postgres: PostgresServer
) -> None:
    server_site.hold()
    resume = (
        "paceline",
        "resume",
        "it",
        str(server_site.file),
        "--store",
        server_site.url,
        "--no-report",
    )
    with server_site.run("--no-report") as first:
        first.until("new best")
        # Like a machine that sleeps: the server notices a lost connection, the driver does not.
        first.signal(signal.SIGSTOP)
        assert end_sessions(postgres)
        with RunningCommand(server_site.there, *resume) as second:
            second.until("study 'it' resumes")
            first.signal(signal.SIGCONT)
            cut = first.end()
            assert cut.code == 2
            driver = f"process {second.pid} on {socket.gethostname()}"
            assert f"study 'it' was taken over by {driver} while the connection to" in cut.err
            server_site.release()
            assert second.end().code == 0
    log = read_log(server_site.url, "it")
    assert [type(step.event) for step in log].count(Resumed) == 1
    assert replay_log(log).difference is None


def test_a_study_and_its_watcher_survive_a_restart_of_their_server(
    server_site: Site, postgres: PostgresServer
) -> None:
    server_site.hold()
    with server_site.run("--no-report") as running:
        running.until("new best")
        with RunningCommand(
            server_site.there, "paceline", "watch", "it", "--store", server_site.url
        ) as watching:
            watching.until("new best")
            postgres.stop()
            server_site.release()  # trials report while the server is down
            postgres.start()
            assert running.end().code == 0
            assert watching.end().code == 0
    assert replay_log(read_log(server_site.url, "it")).difference is None


def test_no_command_prints_or_writes_a_password(
    postgres: PostgresServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(
        tmp_path, postgres.url(PASSWORD_USER).replace("@", f":{PASSWORD.replace(' ', '%20')}@")
    )
    with site.run() as running:
        runs = [running.end()]
    here = CommandLine(site.there, capsys, monkeypatch)
    looks = ("ls --json", "show it", "watch it", "stop it", "resume it", "report it", "show x")
    runs += [here(*look.split(), "--store", site.url) for look in looks]
    runs += [here("run", site.file, "--name", "it", "--store", site.url)]
    assert [ran.code for ran in runs] == [0, 0, 0, 0, 0, 0, 0, 2, 2]
    assert f'"postgresql://{PASSWORD_USER}:***@/postgres' in runs[1].out
    written = [path.read_text() for path in tmp_path.rglob("*") if path.suffix in (".html", ".log")]
    assert len(written) >= 2  # the reports; trials that print nothing leave no file
    log = [str(step) for step in read_log(site.url, "it")]
    for text in [*(ran.out + ran.err for ran in runs), *written, *log]:
        assert "sesame" not in text
