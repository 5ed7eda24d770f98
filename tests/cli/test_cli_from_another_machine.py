"""A study that runs in one place and is watched and ordered about from another, by its store."""

from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from cli_kit import SCRIPT, Here, Ran, environment, log_of, outside
from live_kit import Running, study_file
from postgres_kit import PASSWORD, WALLED, end_sessions
from terminal_kit import OnTerminal

from paceline.api.stored import replayed
from paceline.core.events import Resumed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.postgres import Cluster


class Site:
    """Two folders that share nothing but the address of a store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.here, self.there = folder / "here", folder / "there"
        for each in (self.here, self.there):
            each.mkdir()
        self.file = study_file(self.here)

    def hold(self) -> None:
        """Let trials stay in their third epoch."""
        (self.here / "hold").touch()

    def go_on(self) -> None:
        """Let them go on."""
        (self.here / "hold").unlink()

    def run(self, *more: str) -> Running:
        """Run the study here."""
        command = ("paceline", "run", "study.py", "--name", "it", "--store", self.url, *more)
        return Running(self.here, *command)

    def ask(self, command: str, *arguments: str | Path) -> Ran:
        """Give a command there."""
        return outside(self.there, command, *arguments, "--store", self.url)


def sentences(ran: Ran) -> list[str]:
    """Return what was said line by line, but for new bests: they are told every now and then."""
    lines = ran.out[: ran.out.index("╭")].splitlines()
    return [line for line in lines if "new best" not in line]


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A store of each kind, and the two places."""
    if request.param == "postgres":
        return Site(tmp_path, request.getfixturevalue("cluster").url())
    return Site(tmp_path, f"sqlite:///{tmp_path}/runs.db")


@pytest.fixture
def far(cluster: Cluster, tmp_path: Path) -> Site:
    """A store on a server, and the two places."""
    return Site(tmp_path, cluster.url())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let commands hear Ctrl-C also where the tests themselves do not, as in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_running_study_is_watched_to_its_end_from_elsewhere(site: Site) -> None:
    site.hold()
    watch = ("watch", "it", "--store", site.url)
    with site.run("--policy", "fifo", "--no-report") as running:
        running.until("trial 1 starts")
        with Running(site.there, "paceline", *watch) as watching:
            bored = OnTerminal((SCRIPT, *watch), site.there, environment(site.there))
            bored.until("2/2 slots busy")
            bored.process.send_signal(signal.SIGINT)
            assert bored.close() == 130
            assert "paceline: no longer watching; study 'it' goes on" in bored.output
            # It still runs, and is still watched.
            site.go_on()
            seen = watching.end()
        ran = running.end()
    assert (ran.code, seen.code, seen.err) == (0, 0, "")
    assert sentences(seen) == sentences(ran)
    assert "the study ends" in sentences(seen)[-1]
    assert "ended: quiet" in seen.out


def test_a_study_that_nobody_drives_is_not_waited_for(site: Site) -> None:
    site.hold()
    with site.run() as running:
        running.until("trial 1 starts")
        running.signal(signal.SIGKILL)
        running.end()
    seen = site.ask("watch", "it")
    assert seen.code == 2
    assert "trial 1 starts" in seen.out
    assert "is not running, and unfinished: go on with `paceline resume it --store" in seen.err


def test_a_study_on_a_server_is_seen_ordered_about_and_stopped_from_elsewhere(
    far: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    far.hold()
    here = Here(far.there, capsys, monkeypatch)
    at = ("--store", far.url)
    with far.run("--trials", "20", "--policy", "fifo") as running:
        running.until("there are 2 slots")
        who = f"process {running.pid} on {socket.gethostname()}"
        assert json.loads(here("ls", "--json", *at).out)["studies"][0]["name"] == "it"
        assert json.loads(here("show", "it", "--json", *at).out)["study"]["end"] is None
        more = far.ask("slots", "it", "+2")
        assert more.out == f"study 'it' is asked to go from 2 to 4 slots ({who}).\n"
        running.until("there are 4 slots")
        second = outside(far.there, "run", far.file, "--name", "it", "--store", far.url)
        assert (second.code, second.out) == (2, "")
        assert f"is running ({who})" in second.err
        again = far.ask("resume", "it", "--no-report")
        assert (again.code, again.out) == (2, "")
        assert f"study 'it' in {far.url} is being written by {who}: wait until" in again.err
        stop = far.ask("stop", "it")
        assert stop.out == f"study 'it' is asked to stop ({who}).\n"
        ran = running.end()
    assert ran.code == 0
    assert "ended       command: a command asked for it" in ran.out
    assert here("best", "it", *at).code == here("story", "it", *at).code == 0
    assert here("report", "it", *at) == (0, "it.html\n", "")
    assert here("replay", "it", *at).out.startswith("identical: ")


def test_a_driver_that_was_killed_is_followed_by_one_that_knows_the_address_alone(
    far: Site,
) -> None:
    far.hold()
    with far.run("--no-report") as running:
        running.until("trial 1 starts")
        running.signal(signal.SIGKILL)
        running.end()
    far.go_on()
    # The file is found where it was; on a machine that has it elsewhere it would be given.
    resumed = far.ask("resume", "it", "--no-report")
    assert (resumed.code, resumed.err) == (0, "")
    log = log_of(far.url, "it")
    assert any(isinstance(step.event, Resumed) for step in log)
    assert replayed(log).difference is None
    assert far.ask("resume", "it").out.startswith("study 'it' has ended: ")


def test_a_driver_that_was_cut_off_stops_when_it_finds_its_study_taken_over(
    far: Site, cluster: Cluster
) -> None:
    far.hold()
    resume = ("paceline", "resume", "it", "--store", far.url, "--no-report")
    with far.run("--no-report") as first:
        first.until("trial 1 starts")
        # As a machine that sleeps, or whose network is gone: the server notices, and it does not.
        first.signal(signal.SIGSTOP)
        assert end_sessions(cluster)
        with Running(far.there, *resume) as second:
            second.until("study 'it' goes on")
            first.signal(signal.SIGCONT)
            cut = first.end()
            assert cut.code == 2
            who = f"process {second.pid} on {socket.gethostname()}"
            assert f"study 'it' was taken over by {who} while the connection to" in cut.err
            far.go_on()
            assert second.end().code == 0
    log = log_of(far.url, "it")
    assert [type(step.event) for step in log].count(Resumed) == 1
    assert replayed(log).difference is None


def test_a_study_and_who_watches_it_outlive_a_restart_of_their_server(
    far: Site, cluster: Cluster
) -> None:
    far.hold()
    with far.run("--no-report") as running:
        running.until("trial 1 starts")
        with Running(far.there, "paceline", "watch", "it", "--store", far.url) as watching:
            watching.until("trial 1 starts")
            cluster.stop()
            far.go_on()  # they report while there is nobody to remember it
            cluster.start()
            assert running.end().code == 0
            assert watching.end().code == 0
    assert replayed(log_of(far.url, "it")).difference is None


def test_no_command_shows_a_password_or_writes_it_down(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(tmp_path, cluster.url(WALLED).replace("@", f":{PASSWORD.replace(' ', '%20')}@"))
    with site.run() as running:
        said = [running.end()]
    here = Here(site.there, capsys, monkeypatch)
    looks = ("ls --json", "show it", "watch it", "stop it", "resume it", "report it", "show x")
    said += [here(*look.split(), "--store", site.url) for look in looks]
    said += [here("run", site.file, "--name", "it", "--store", site.url)]
    assert [ran.code for ran in said] == [0, 0, 0, 0, 0, 0, 0, 2, 2]
    assert f'"postgresql://{WALLED}:***@/postgres' in said[1].out
    written = [path.read_text() for path in tmp_path.rglob("*") if path.suffix in (".html", ".log")]
    assert len(written) >= 3
    log = [str(step) for step in log_of(site.url, "it")]
    for text in [*(ran.out + ran.err for ran in said), *written, *log]:
        assert "sesame" not in text
