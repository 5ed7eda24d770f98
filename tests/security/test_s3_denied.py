"""A storage of checkpoints that denies access: one sentence, before anything is trained."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from remote_checkpoints import make_options

import paceline as pl
from paceline.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DENIED = (
    b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)


class Denying(BaseHTTPRequestHandler):
    """Answers every request with 403."""

    def answer(self) -> None:
        """Read the request and deny it."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(403)
        self.send_header("Content-Length", str(len(DENIED)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(DENIED)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def denying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lead clients of S3 to a server that denies everything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Denying)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.usefixtures("denying")
def test_a_storage_that_denies_access_is_a_sentence_before_any_training(tmp_path: Path) -> None:
    def never(trial: Any) -> None:  # noqa: ANN401
        (tmp_path / "trained").touch()

    given = make_options(tmp_path, "one", checkpoints="s3://bucket/runs")
    with pytest.raises(
        CheckpointError, match=r"cannot be written to s3://bucket/runs/.*\.$"
    ) as got:
        pl.tune(never, space={"lr": pl.uniform(0, 1)}, **given)
    assert "secret" not in str(got.value)
    assert not (tmp_path / "trained").exists()
