"""The pipe that wakes a select."""

from __future__ import annotations

import select
import threading

from paceline.worker.wakeup_pipe import WakeupPipe


def is_readable(pipe: WakeupPipe) -> bool:
    return bool(select.select([pipe.fileno()], [], [], 0)[0])


def test_a_pipe_is_readable_from_a_wake_until_it_is_cleared() -> None:
    pipe = WakeupPipe()
    assert not is_readable(pipe)
    pipe.clear()
    for _ in range(3):
        pipe.wake()
    assert is_readable(pipe)
    pipe.clear()
    assert not is_readable(pipe)
    thread = threading.Thread(target=pipe.wake)
    thread.start()
    assert select.select([pipe.fileno()], [], [], 10)[0]
    thread.join()
    pipe.close()
    pipe.wake()  # without effect


def test_a_full_pipe_does_not_block() -> None:
    pipe = WakeupPipe()
    for _ in range(1 << 17):
        pipe.wake()
    assert is_readable(pipe)
    while is_readable(pipe):
        pipe.clear()
    pipe.close()
