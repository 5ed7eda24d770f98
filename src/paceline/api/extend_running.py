"""Extending a study that another process runs: its driver is asked, and its end awaited.

Knows the command for it. Does not know how a driver extends its study.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from paceline.api.load import load
from paceline.api.spec_changes import COMMANDABLE, describe_extension, reconcile
from paceline.api.stored import follow, open_existing, read_log
from paceline.core.events import ExtendStudy, Opened

if TYPE_CHECKING:
    from paceline.api.options import StudyOptions
    from paceline.api.results import Result
    from paceline.core.errors import StudyRunning
    from paceline.core.values import StudySpec
    from paceline.live.watcher import Watch

_logger = logging.getLogger("paceline.study")


def extend_running(
    spec: StudySpec, options: StudyOptions, running: StudyRunning, watch: Watch | None
) -> Result:
    """Ask the driver of a running study for more, and return the result when it has ended.

    Raises the given StudyRunning if this call asks for nothing new.
    """
    name, url = spec.name, options.store
    assert url is not None
    with open_existing(url) as store:
        first = next(read_log(store, name), None)
        opened = None if first is None else first.event
        if not isinstance(opened, Opened):
            raise running
        to = describe_extension(opened.spec, reconcile(opened, spec, options))
        if not to or spec.groups:
            raise running
        store.post(name, ExtendStudy(_list_options(spec, options)))
        _logger.info("study %r runs in %s, which extends it to %s", name, running.holder, to)
        is_interrupted = False
        try:
            follow(store, name, watch or (lambda state, steps: None))
        except KeyboardInterrupt:
            is_interrupted = True  # the study goes on
    places = [each for each in (options.files, options.checkpoints) if each is not None]
    result = load(name, url, allow=places)
    result.interrupted = is_interrupted
    return result


def _list_options(spec: StudySpec, options: StudyOptions) -> dict[str, Any]:
    """Return the options of a call that a command may change, as JSON has them."""
    given = {name: getattr(options, name) for name in COMMANDABLE}
    deadline = given["deadline"]
    if isinstance(deadline, datetime):
        given["deadline"] = deadline.isoformat()
    elif isinstance(deadline, timedelta):
        given["deadline"] = deadline.total_seconds()
    if given["policy"] is not None:
        given["policy"] = str(spec.policy)
    return {name: value for name, value in given.items() if value is not None}
