"""Hyperparameters that a training function asks for while it runs, and Optuna's other spellings.

Knows the values that were proposed, how missing ones are drawn, what the function has used so far,
what the driver was not told yet, and how a function that asks `should_prune` learns the policy's
decision about its last report. How a report closes an epoch, the trial knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from paceline.core.domains import ChoiceDomain, FloatDomain, IntDomain, make_choices
from paceline.core.errors import TrialError
from paceline.core.rng import stream
from paceline.worker.protocol import AskJudgement, AttrsSet, ParamsUsed, ReportJudged
from paceline.worker.stop_request import Unwind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from paceline.core.domains import Domain
    from paceline.core.values import Config, Value
    from paceline.worker.protocol import AnyMessage, Channel, StartAttempt
    from paceline.worker.stop_request import StopRequest


class Suggestions:
    """What a function asked for in one attempt, and the values it was given."""

    def __init__(self, start: StartAttempt) -> None:
        self._start = start
        # The values in use, as the log holds them, and what the function asked for.
        self.params: Config = {}
        self.domains: dict[str, Domain] = {}
        self.attrs: dict[str, Value] = {}
        self._new_attrs: dict[str, Value] = {}
        self._has_new_params = False

    def suggest(self, name: str, domain: Domain) -> Value:
        """Return the value of a hyperparameter: the one in use, the proposed one, or a drawn one.

        A proposed value that the domain does not hold is not used, since its limits may depend on
        values of this trial. The draw depends only on the study's seed, the trial and the name, so
        that a retry draws the same.
        """
        if name in self.params:
            self._refuse_other_kind(name, domain)
            return self.params[name]
        start = self._start
        value = domain.find(start.config[name]) if name in start.config else None
        if not start.define_by_run:
            self._refuse_outside(name, domain, value)
        elif value is None and not self._holds_none(name, domain):
            value = domain.at(stream(start.seed, "suggest", start.trial, name).random())
        self.params[name] = value
        self.domains[name] = domain
        self._has_new_params = start.define_by_run
        return value

    def set_attr(self, key: str, value: Value) -> None:
        """Attach a value to the trial."""
        if not isinstance(key, str) or not key:
            raise TrialError(f"the attribute's name is {key!r}: give a string that is not empty.")
        plain = getattr(value, "item", None)  # a numpy scalar
        try:
            body = msgspec.json.encode(plain() if callable(plain) else value)
        except (TypeError, ValueError):
            raise TrialError(
                f"the attribute {key!r} is of class {type(value).__name__}, which cannot be "
                "written to the log: give numbers, strings, True, False, None, or lists and dicts "
                "of these."
            ) from None
        self.attrs[key] = self._new_attrs[key] = msgspec.json.decode(body)

    def take_news(self) -> Iterator[ParamsUsed | AttrsSet]:
        """Yield what was not sent to the driver yet, once."""
        if self._has_new_params:
            self._has_new_params = False
            yield ParamsUsed(params=dict(self.params), domains=dict(self.domains))
        if self._new_attrs:
            attrs, self._new_attrs = self._new_attrs, {}
            yield AttrsSet(attrs=attrs)

    def _holds_none(self, name: str, domain: Domain) -> bool:
        """Say whether None was proposed and is one of the choices."""
        proposed = self._start.config.get(name, domain)
        return isinstance(domain, ChoiceDomain) and proposed is None and None in domain.choices

    def _refuse_other_kind(self, name: str, domain: Domain) -> None:
        if type(domain) is not type(self.domains[name]):
            raise TrialError(
                f"{name!r} was asked for in two ways in one trial, as "
                f"{describe_domain(self.domains[name])} and as {describe_domain(domain)}: give one "
                "of them another name."
            )

    def _refuse_outside(self, name: str, domain: Domain, value: Value | None) -> None:
        """Raise TrialError if the study's own space does not give this hyperparameter."""
        config = self._start.config
        if name not in config:
            known = ", ".join(config) or "nothing"
            raise TrialError(
                f"the function asks for {name!r}, and the study's space has {known}: add {name!r} "
                "to the space, or leave space=… out so that the function alone says what it needs."
            )
        if value is None and not self._holds_none(name, domain):
            raise TrialError(
                f"{name}={config[name]!r} comes from the study's space, and the function asks for "
                f"{describe_domain(domain)}: make both the same, or leave space=… out."
            )


def describe_domain(domain: Domain) -> str:
    """Return a domain in words.

    >>> describe_domain(FloatDomain(low=0.0, high=1.0))
    'a number from 0 to 1'
    """
    if isinstance(domain, ChoiceDomain):
        return f"one of {', '.join(map(repr, domain.choices))}"
    noun = "a number" if isinstance(domain, FloatDomain) else "a whole number"
    step = "" if domain.step in (None, 1) else f" in steps of {domain.step:g}"
    return f"{noun} from {domain.low:g} to {domain.high:g}{step}"


class SuggestingTrial:
    """The part of a trial that is spelled as in Optuna. `Trial` derives from it."""

    _suggestions: Suggestions
    # The function asks after a report whether it should end, so that `report` neither waits nor
    # unwinds; whether it has asked since its last report.
    _defers = False
    _has_asked = False

    if TYPE_CHECKING:
        # What `Trial` has.
        _start: StartAttempt
        _channel: Channel
        _stop: StopRequest
        _config: Config
        _done: int
        _goal: int
        _loops: bool

        @property
        def id(self) -> int: ...
        @property
        def rank(self) -> int: ...
        @property
        def size(self) -> int: ...
        def _handle(self, message: AnyMessage) -> None: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number from low to high: drawn in their logarithm, or in steps from low.

        Asking again for a name returns the same value.
        """
        try:
            low, high = float(low), float(high)
            step = None if step is None else float(step)
            domain = FloatDomain(low=low, high=high, step=step, log=bool(log))
        except (TypeError, ValueError) as error:
            raise TrialError(f"suggest_float({name!r}, …): {error}.") from None
        return float(self._suggestions.suggest(_check_name(name), domain))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return a whole number from low to high, both included."""
        try:
            limits = [_read_whole(each) for each in (low, high, step)]
            domain = IntDomain(low=limits[0], high=limits[1], step=limits[2], log=bool(log))
        except (TypeError, ValueError) as error:
            raise TrialError(f"suggest_int({name!r}, …): {error}.") from None
        return int(self._suggestions.suggest(_check_name(name), domain))

    def suggest_categorical(self, name: str, choices: Iterable[Any]) -> Any:  # noqa: ANN401
        """Return one of the choices."""
        try:
            if isinstance(choices, str):
                raise TypeError(f"{choices!r} is a string: give a list of choices")
            given = list(choices)
            domain = make_choices(given)
        except (TypeError, ValueError) as error:
            raise TrialError(f"suggest_categorical({name!r}, …): {error}.") from None
        value = self._suggestions.suggest(_check_name(name), domain)
        at = domain.index(value)
        # The choice itself: the log may hold it in another form, such as a list for a tuple.
        return value if at is None else given[at]

    @property
    def number(self) -> int:
        """The trial's number in its study, as `id`."""
        return self.id

    @property
    def params(self) -> Config:
        """The hyperparameters in use: those that were asked for so far, else the config."""
        return dict(self._config)

    def set_user_attr(self, key: str, value: Any) -> None:  # noqa: ANN401
        """Attach a value to the trial: it is kept in the log and in the trial's result."""
        self._suggestions.set_attr(key, value)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """The values that were attached in this attempt."""
        return dict(self._suggestions.attrs)

    def should_prune(self) -> bool:
        """Say whether the policy has ended the trial by its last report; wait for its decision.

        If it is True, end the function by `raise TrialPruned`.
        """
        self._has_asked = True
        if self._stop.is_requested:
            return True
        if self.size > 1 or not self._start.start < self._done < self._start.epochs:
            return False
        self._channel.send(AskJudgement(epoch=self._done))
        try:
            stops = self._await_judgement()
        except Unwind:
            stops = True
        if stops:
            self._stop.request()
        self._stop.is_deferred = stops
        return stops

    def _expect_question(self, step: int | None) -> None:
        """Find out whether the function asks `should_prune` after each report."""
        if self._has_asked:
            self._defers = True
        elif self._defers:
            self._defers = False  # it has not asked after its last report
        else:
            # Optuna's spelling: it will probably ask.
            self._defers = step is not None and not self._loops and self._done == self._start.start
        self._defers = self._defers and self.size == 1
        self._has_asked = False

    def _await_judgement(self) -> bool:
        """Wait until the last report is decided about; return whether the attempt ends."""
        is_judged = False
        while not is_judged or self._goal <= self._done:
            message = self._channel.receive(wait=True)
            if message is None:
                return True  # the driver is gone, or has closed the channel
            if isinstance(message, ReportJudged):
                is_judged = message.epoch >= self._done
                if message.stops:
                    return True
            else:
                self._handle(message)
        return self._stop.is_requested

    def send_news(self) -> None:
        """Tell the driver what the function has asked for and attached since the last time."""
        if not self.rank:
            for message in self._suggestions.take_news():
                self._channel.send(message)

    def leave(self, message: AnyMessage | None = None) -> None:
        """Report how the attempt ended, and close the channel."""
        if message is not None:
            self._channel.send(message)
        self._channel.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name in _GONE:
            raise AttributeError(f"trial.{name} is not available: {_GONE[name]}.")
        # Not while an attribute is missing because the trial is not complete yet.
        is_hyperparameter = name in self.__dict__.get("_config", ())
        hint = f": write trial[{name!r}] for the hyperparameter" if is_hyperparameter else ""
        raise AttributeError(f"the trial has no attribute {name!r}{hint}", name=name, obj=self)


# Names of Optuna's trial that have no counterpart.
_GONE = {
    "suggest_uniform": "use trial.suggest_float(name, low, high)",
    "suggest_loguniform": "use trial.suggest_float(name, low, high, log=True)",
    "suggest_discrete_uniform": "use trial.suggest_float(name, low, high, step=q)",
    "set_system_attr": "use trial.set_user_attr(key, value)",
    "system_attrs": "use trial.user_attrs",
    "distributions": "use trial.params",
    "relative_params": "use trial.params",
    "datetime_start": "take the time in the function",
    "set_constraint": "constraints are not supported",
    "study": "the study runs in another process",
    "storage": "the study runs in another process",
}


def is_pruned(error: BaseException) -> bool:
    """Say whether an exception is TrialPruned, of this package or of Optuna's."""
    return any(
        each.__name__ == "TrialPruned" and each.__module__.split(".")[0] in ("optuna", "paceline")
        for each in type(error).__mro__
    )


def _check_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise TrialError(f"a hyperparameter is named {name!r}: give a string that is not empty.")
    return name


def _read_whole(value: Any) -> int:  # noqa: ANN401
    number = int(value)
    if isinstance(value, bool) or number != value:
        raise ValueError(f"{value!r} is not a whole number")
    return number
