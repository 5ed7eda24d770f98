"""The process engine: attempts as worker processes, their messages as events.

Knows the wall clock, what workers report and what that means for the study. The same decisions go
in and the same kinds of events come out as in the simulator. It decides nothing. What it has to
know of the study it reads from the study itself.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from paceline.core import decisions as d
from paceline.core import events as e
from paceline.core.values import to_loss
from paceline.engines.process.background import BackgroundJobs
from paceline.engines.process.clock import Clock
from paceline.engines.process.providers import CheckpointPublished, SlotsChanged
from paceline.engines.process.supervisor import Supervisor, Timeouts
from paceline.engines.process.uploads import Downloaded, Uploads
from paceline.plan.cadence import SAVE_SHARE
from paceline.worker import protocol
from paceline.worker.forkserver_protocol import WorkerExited
from paceline.worker.protocol import StartAttempt
from paceline.worker.trial import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from paceline.core.decisions import Launch, Step
    from paceline.core.ports import Advisor
    from paceline.core.values import AttemptId, StudySpec
    from paceline.core.views import EngineView
    from paceline.engines.process.attempt import RunningAttempt, WorkerProcess
    from paceline.engines.process.checkpoint_files import CheckpointFiles
    from paceline.engines.process.providers import Devices, WorkerPool
    from paceline.engines.process.supervisor import SupervisorEvent
    from paceline.machine.state import StudyState

_logger = logging.getLogger("paceline.engine")

_GPU_GONE = "its GPU is gone"
# Matches no checkpoint: a worker that is to read one with this digest reports it as unusable.
_DROPPED = "dropped"


class ProcessEngine:
    """Carries decisions out with worker processes."""

    # On this machine a forecast takes its time from the training.
    _forecast_threads = 1

    def __init__(
        self,
        spec: StudySpec,
        pool: WorkerPool,
        devices: Devices,
        *,
        files: CheckpointFiles,
        advisor: Advisor | None = None,
        timeouts: Timeouts | None = None,
        began: float | None = None,
    ) -> None:
        self._spec = spec
        self._devices = devices
        self._advisor = advisor
        self._timeouts = timeouts or Timeouts()
        self._files = files
        self._clock = Clock(began)
        # The number of the last step that was carried out.
        self._applied = -1
        self._supervisor = Supervisor(pool, self._clock, self._timeouts)
        # Attempts that saved at their goal; released unless the goal is raised.
        self._at_goal: list[RunningAttempt] = []
        self._slots = list(devices.initial_slots)
        # Slots of GPUs that have disappeared.
        self._lost_slots: set[int] = set()
        self._events: list[e.AnyEvent] = []
        self._opened = self._closed = False
        # Of a study that is resumed: attempts without a driver, requests without an answer.
        self._lost_attempts: list[AttemptId] = []
        self._open_requests: list[d.AskForecast | d.AskProposal | d.WakeAt] = []
        # A trial in the driver's process does not train while the next config is proposed.
        proposal_threads = 0 if pool.shares_process else 1
        self._jobs = BackgroundJobs(
            {"forecasts": self._forecast_threads, "proposals": proposal_threads}
        )
        self._uploads = Uploads(files, self._jobs)
        self._supervisor.wake_on(self._jobs.fileno())
        self._supervisor.prepare(len(self._slots))

    # The port

    @property
    def now(self) -> float:
        """Seconds on the study's clock, which stands still while no driver runs."""
        return self._clock.now

    def resume(self, study: StudyState) -> None:
        """Continue a study from its log: report its attempts as lost, and repeat open requests."""
        self._applied = study.number - 1
        self._clock.resume(study.now)
        # Told at the first `wait`: the study has taken Resumed by then.
        self._lost_attempts = list(study.attempts)
        self._open_requests = list(study.pending.open_requests())

    def extend(self, spec: StudySpec, advisor: Advisor) -> None:
        """Go on with another spec: the study was extended while it runs."""
        self._spec, self._advisor = spec, advisor
        self._tell_capacity()

    def wait(self, timeout_s: float | None = None) -> Sequence[e.AnyEvent] | None:
        """Return what has happened, in order; wait where nothing has."""
        if self._closed:
            return None
        if not self._opened:
            self._open()
        # The decisions that followed from the events returned last time were carried out by now.
        at_goal, self._at_goal = self._at_goal, []
        if any(attempt.has_passed_goal for attempt in at_goal):
            self._poll(0.0)  # it may have reported one more epoch meanwhile, which is not saved
        for attempt in at_goal:
            if attempt not in self._at_goal:  # else the study has to judge that epoch first
                self._release(attempt)
        clock = self._clock
        until = math.inf if timeout_s is None else clock.now + timeout_s
        while not self._events:
            now, due = clock.now, clock.next_due
            nearest = min(due, until)
            if nearest > now:
                self._poll(None if nearest == math.inf else nearest - now)
            elif due <= now:
                clock.run_due()
            else:
                break
        events, self._events = self._events, []
        return events

    def apply(self, step: Step, study: EngineView) -> None:
        """Carry a step's decisions out, once."""
        if step.number <= self._applied:
            return
        self._applied = step.number
        if isinstance(step.event, e.Reported):
            self._spread_best(step.event, study)
        elif isinstance(step.event, e.Ended):
            self._uploads.clear(step.event, study)
        for decision in step.decisions:
            act = _ACT.get(type(decision))
            if act is not None:
                act(self, decision, study)
        if isinstance(step.event, e.Reported):
            self._judged(step.event)

    def close(self, grace_s: float | None = None) -> None:
        """End all processes: with SIGTERM, and after the grace with SIGKILL."""
        if self._closed:
            return
        self._closed = True
        until = self.now + (self._timeouts.last_grace_s if grace_s is None else grace_s)
        supervisor = self._supervisor
        supervisor.end_all()
        try:
            while supervisor.attempts and not supervisor.is_pool_lost and self.now < until:
                self._poll(max(0.0, until - self.now))
        finally:  # an interrupt ends the grace
            supervisor.close()
            self._jobs.close()
            self._events.clear()

    # Events

    def _open(self) -> None:
        self._opened = True
        self._events.append(self._capacity(self.now))
        note = "its driver was gone"
        for attempt in self._lost_attempts:
            ended = e.Ended(at=self.now, attempt=attempt, cause=e.Cause.LOST, note=note)
            self._events.append(ended)
        for request in self._open_requests:
            if isinstance(request, d.WakeAt):
                self._schedule_wake(request)
            else:
                self._submit_request(request)
        if self._devices.needs_watching:
            self._clock.call_later(self._timeouts.look_s, self._keep_looking)
        if self._timeouts.hang_s is not None:
            self._look_again(self._timeouts.hang_s)

    def _poll(self, timeout: float | None) -> None:
        events = self._supervisor.poll(timeout)
        if self._supervisor.is_pool_lost and not self._closed:
            events += self._supervisor.restart_pool(len(self._slots))
        for event in events:
            self._take(event)
        for result in self._jobs.results():
            self._take_result(result)

    def _take(self, event: SupervisorEvent) -> None:
        if isinstance(event, SlotsChanged):
            self._change_slots(event)
        elif isinstance(event, CheckpointPublished):
            self._tell(self._uploads.finish(event, self._clock.run_due()))
        else:
            process, message = event
            if not isinstance(message, WorkerExited):
                self._receive(process, message)
            elif self._supervisor.remove(process, message):
                self._end(process.attempt)

    def _take_result(self, result: object) -> None:
        """Handle the result of a background job."""
        if isinstance(result, CheckpointPublished):
            self._tell(self._uploads.finish(result, self._clock.run_due()))
        elif isinstance(result, Downloaded):
            self._uploads.fetched(result)
            attempt = self._supervisor.attempts.get(result.attempt)
            for process in () if attempt is None else attempt.processes:
                if self._uploads.is_local(process):
                    process.channel.send(protocol.CheckpointFetched(note=result.note))
        elif isinstance(result, e.Forecasted | e.Proposed):
            self._tell([replace(result, at=self._clock.run_due())])

    def _receive(self, process: WorkerProcess, message: protocol.AnyMessage) -> None:
        """Turn a worker's message into events."""
        attempt = process.attempt
        at = attempt.heard_at = self._clock.run_due()
        match message:
            case protocol.EpochReport():
                if message.last:
                    # Known before the report is judged: the attempt is not held at its goal.
                    process.returned = True
                    attempt.cause = attempt.cause or e.Cause.FINISHED
                self._report(attempt, message)
            case protocol.CheckpointWritten():
                self._save(attempt, message)
            case protocol.CheckpointSkipped(epoch=epoch, note=note):
                missed = e.Missed(at=at, attempt=attempt.id, epoch=epoch, note=note)
                self._tell(self._uploads.accept(missed))
            case protocol.CheckpointUnusable(note=note):
                if attempt.lose(note):
                    _logger.warning("attempt %d: unusable checkpoint: %s", attempt.id, note)
                    self._tell([e.Spoiled(at=at, attempt=attempt.id, note=note)])
            case protocol.ParamsUsed():
                self._tell([attempt.describe_params(message, at)])
            case protocol.AttrsSet(attrs=attrs):
                number, trial = attempt.id, attempt.trial
                self._tell([e.Annotated(at=at, attempt=number, trial=trial, attrs=attrs)])
            case protocol.AskJudgement(epoch=epoch):
                attempt.asked = epoch
                attempt.answer()
            case protocol.FunctionPruned():
                process.returned = True
                attempt.cause = attempt.cause or e.Cause.PRUNED
            case protocol.FunctionReturned():
                process.returned = True
                if not process.rank:
                    attempt.cause = attempt.cause or e.Cause.FINISHED
                # A GPU's memory is free only after the exit; for a core there is no need to wait.
                can_go = attempt.is_single and self._devices.device == "cpu"
                if can_go and self._supervisor.let_go(process):
                    self._end(attempt)
            case protocol.PeerLost(rank=rank):
                attempt.lose_peer(rank)
            case protocol.FunctionFailed():
                attempt.fail(message)

    def _report(self, attempt: RunningAttempt, message: protocol.EpochReport) -> None:
        attempt.epoch = message.epoch
        attempt.has_passed_goal = False
        # The attempt has read its checkpoint.
        self._files.release(attempt.id)
        report = e.Reported(
            at=attempt.heard_at,
            attempt=attempt.id,
            epoch=message.epoch,
            metrics=message.metrics,
            seconds=message.seconds,
            memory=message.memory,
            version=message.version,
            last=message.last,
        )
        saved = message.saved
        if isinstance(saved, protocol.CheckpointWritten):
            self._save(attempt, saved, report)
            return
        self._tell(self._uploads.accept(report))
        if saved is not None:
            missed = e.Missed(at=report.at, attempt=attempt.id, epoch=saved.epoch, note=saved.note)
            self._tell(self._uploads.accept(missed))

    def _save(
        self,
        attempt: RunningAttempt,
        written: protocol.CheckpointWritten,
        report: e.Reported | None = None,
    ) -> None:
        saved = e.Saved(
            at=attempt.heard_at,
            attempt=attempt.id,
            epoch=written.epoch,
            seconds=written.seconds,
            bytes=written.bytes,
            digest=written.digest,
        )
        ordered = written.epoch >= attempt.goal or written.epoch in attempt.save_at
        self._tell(self._uploads.accept_checkpoint(saved, report, ordered=ordered))

    def _end(self, attempt: RunningAttempt) -> None:
        """Report the end of an attempt, after its last process exited."""
        if attempt.cause is e.Cause.FAILED and self._devices.needs_watching:
            self._look_at_gpus()
            if not self._lost_slots.isdisjoint(attempt.slots):
                attempt.cause, attempt.note = e.Cause.LOST, _GPU_GONE
        ended = attempt.describe_end(self._clock.run_due())
        # After `close` processes are expected to exit before their goal.
        if not self._closed and ended.cause in (e.Cause.FAILED, e.Cause.LOST, e.Cause.CROWDED):
            place = f" at {ended.place}" if ended.place else ""
            _logger.warning(
                "attempt %d of trial %d: %s%s; its output is in %s: %s",
                *(attempt.id, attempt.trial, ended.cause, place, attempt.log, ended.note),
            )
        self._files.outputs.finish(attempt.id)
        self._tell(self._uploads.accept(ended))

    def _judged(self, report: e.Reported) -> None:
        """Answer an attempt that waits for the decision about its report."""
        attempt = self._supervisor.attempts.get(report.attempt)
        if attempt is not None:
            attempt.judged = report.epoch
            attempt.answer()
            if attempt.has_passed_goal and attempt.saved == attempt.epoch:
                self._at_goal.append(attempt)

    def _tell(self, events: Iterable[e.AnyEvent]) -> None:
        """Return these events from the next `wait`."""
        for event in events:
            self._events.append(event)
            if isinstance(event, e.Saved | e.Missed):
                attempt = self._supervisor.attempts.get(event.attempt)
                if attempt is None:
                    continue
                attempt.settled = event.epoch
                if isinstance(event, e.Saved):
                    attempt.saved = event.epoch
                # After a long upload the checkpoint may be of an epoch before the goal.
                if event.epoch >= attempt.goal:
                    self._at_goal.append(attempt)

    def _tell_capacity(self) -> None:
        self._tell([self._capacity(self._clock.run_due())])

    def _capacity(self, at: float) -> e.CapacityChanged:
        slots = tuple(self._slots)
        return e.CapacityChanged(at=at, slots=slots, nodes=self._devices.nodes(slots))

    # Watching

    def _look_at_gpus(self) -> None:
        """Find the GPUs that disappeared or came back."""
        missing = self._devices.missing()
        gone = missing.intersection(self._slots)
        back = self._lost_slots - missing
        self._lost_slots = (self._lost_slots | gone) - back
        self._change_slots(SlotsChanged(came=tuple(back), gone=tuple(gone), why=_GPU_GONE))

    def _change_slots(self, change: SlotsChanged) -> None:
        """Take slots in and out, and end the attempts on slots that are gone."""
        gone = set(change.gone)
        if gone or change.came:
            self._slots = sorted({*self._slots, *change.came} - gone)
            self._tell_capacity()
        for attempt in self._supervisor.attempts.values():
            if attempt.cause is None and not gone.isdisjoint(attempt.slots):
                attempt.cause, attempt.note = e.Cause.LOST, change.why
                self._supervisor.end(attempt)

    def _keep_looking(self) -> None:
        self._look_at_gpus()
        self._clock.call_later(self._timeouts.look_s, self._keep_looking)

    def _look_for_hanging(self, due: float) -> None:
        limit, late = self._timeouts.hang_s, self.now - due
        assert limit is not None
        for attempt in self._supervisor.attempts.values():
            if late > limit / 4:
                # The driver itself was stopped meanwhile, and has not read what was reported.
                attempt.heard_at += late
            elif attempt.cause is None and self.now - attempt.heard_at > limit:
                attempt.cause = e.Cause.FAILED
                attempt.note = f"it reported nothing for {limit:g} s"
                self._supervisor.end(attempt)
        self._look_again(limit)

    def _look_again(self, limit: float) -> None:
        due = self.now + limit / 4
        self._clock.call_at(due, lambda: self._look_for_hanging(due))

    def _spread_best(self, report: e.Reported, study: EngineView) -> None:
        """Send the best loss to the attempts of the study that has just reported one."""
        attempts = self._supervisor.attempts
        source = attempts.get(report.attempt)
        if source is None:
            return
        best, group = study.best_loss_for(source.trial), study.group(source.trial)
        source.know_best(to_loss(report.metrics.get(self._spec.metric), self._spec.sign))
        for attempt in attempts.values():
            if study.group(attempt.trial) == group:
                attempt.send_best(best)

    # Decisions

    def _launch(self, decision: d.Launch, study: EngineView) -> None:
        starts = list(self._starts(decision, study))
        attempt = self._supervisor.start(decision, starts, self._files.log(decision.attempt))
        attempt.know_best(study.best_loss_for(decision.trial))
        source = None if decision.source is None else (decision.source, decision.start)
        node_files = [self._devices.node_files(slot) for slot in decision.slots]
        self._uploads.start(attempt, node_files, source)
        local = (start for start, node in zip(starts, node_files, strict=True) if node is None)
        if source is not None and any(start.awaits for start in local):
            self._uploads.fetch(decision.attempt, source)

    def _starts(self, launch: Launch, study: EngineView) -> Iterator[StartAttempt]:
        """Yield the first message to each process of an attempt, by rank."""
        spec, files, devices = self._spec, self._files, self._devices
        config, best = study.config(launch.trial), study.best_loss_for(launch.trial)
        seed = config.get("seed")
        nodes = [devices.node_files(slot) for slot in launch.slots]
        checkpoint, digest, missing = None, "", False
        if launch.source is not None:
            name = (launch.source, launch.start)
            known = study.checkpoint_digest(name)
            checkpoint, digest = checkpoint_name(*name), _DROPPED if known is None else known
            missing = None in nodes and not files.reserve(launch.attempt, name)
        for rank, node in enumerate(nodes):
            yield StartAttempt(
                attempt=launch.attempt,
                trial=launch.trial,
                config=config,
                epochs=spec.epochs,
                start=launch.start,
                goal=launch.goal,
                save_at=launch.save_at,
                seed=seed if isinstance(seed, int) else spec.seed,
                folder=str(files.checkpoints) if node is None else node.checkpoints,
                checkpoint=checkpoint,
                digest=digest,
                # Another node looks by itself whether it has the checkpoint.
                awaits=missing if node is None else checkpoint is not None,
                metric=spec.metric,
                sign=spec.sign,
                best=None if best == math.inf else best,
                save_share=SAVE_SHARE,
                width=launch.width,
                rank=rank,
                slot_bytes=devices.slot_bytes(launch.slots[rank]) if spec.pack > 1 else 0,
                device=devices.device,
                threads=devices.threads(launch.width),
                environ=devices.variables(launch.slots, launch.width, rank),
                log=str((node or files).log(launch.attempt)),
                define_by_run=spec.define_by_run,
            )

    def _amend(self, decision: d.Amend, study: EngineView) -> None:
        attempt = self._supervisor.attempts.get(decision.attempt)
        if attempt is None or decision.version <= attempt.version:
            return
        attempt.version = decision.version
        attempt.has_passed_goal = decision.goal <= attempt.epoch and decision.goal < attempt.goal
        attempt.goal = decision.goal
        attempt.save_at = decision.save_at
        attempt.send(
            protocol.UpdateOrder(
                version=decision.version,
                config=study.config(decision.trial),
                goal=decision.goal,
                save_at=decision.save_at,
            )
        )

    def _release(self, attempt: RunningAttempt) -> None:
        """End an attempt that is at its goal and has saved."""
        if attempt.settled != attempt.epoch:
            return  # it trained on before its goal was moved back, and saves after its next epoch
        # After its last epoch the function runs on to its own end, and the process exits then.
        if attempt.cause is None and attempt.goal <= attempt.epoch < self._spec.epochs:
            attempt.cause = e.Cause.GOAL
            if attempt.has_passed_goal:
                # It reads no message before the end of its epoch, which no trial needs.
                self._supervisor.end(attempt)
            else:
                attempt.send(protocol.Release())

    def _halt(self, decision: d.Halt, study: EngineView) -> None:
        attempt = self._supervisor.attempts.get(decision.attempt)
        if attempt is not None and attempt.cause is None:
            attempt.cause = e.Cause.HALTED
            self._supervisor.end(attempt)

    def _wake_at(self, decision: d.WakeAt, study: EngineView) -> None:
        self._schedule_wake(decision)

    def _schedule_wake(self, decision: d.WakeAt) -> None:
        woke = e.Woke(at=decision.at, trial=decision.trial)
        self._clock.call_at(decision.at, lambda: self._events.append(woke))

    def _drop(self, decision: d.Drop, study: EngineView) -> None:
        for name in decision.checkpoints:
            self._uploads.drop(name)

    def _provide(self, decision: d.Provide, study: EngineView) -> None:
        # A slot that was given up is not free while an attempt is still on it.
        used = {slot for attempt in self._supervisor.attempts.values() for slot in attempt.slots}
        used |= {*self._slots, *self._devices.missing()}
        more = self._devices.more(used, decision.slots)
        self._slots += more
        self._supervisor.prepare(len(more))
        self._tell_capacity()

    def _retire(self, decision: d.Retire, study: EngineView) -> None:
        self._slots = [slot for slot in self._slots if slot not in decision.slots]
        self._devices.give_back(decision.slots)

    def _ask(self, decision: d.AskForecast | d.AskProposal, study: EngineView) -> None:
        self._submit_request(decision)

    def _submit_request(self, decision: d.AskForecast | d.AskProposal) -> None:
        assert self._advisor is not None
        kind = "forecasts" if isinstance(decision, d.AskForecast) else "proposals"
        self._jobs.submit(kind, self._advisor.answer(decision))


_ACT: dict[type, Callable[[ProcessEngine, Any, EngineView], None]] = {
    d.Launch: ProcessEngine._launch,
    d.Amend: ProcessEngine._amend,
    d.Halt: ProcessEngine._halt,
    d.Drop: ProcessEngine._drop,
    d.WakeAt: ProcessEngine._wake_at,
    d.AskForecast: ProcessEngine._ask,
    d.AskProposal: ProcessEngine._ask,
    d.Provide: ProcessEngine._provide,
    d.Retire: ProcessEngine._retire,
}
