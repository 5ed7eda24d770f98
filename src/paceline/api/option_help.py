"""What each option of a study means: the text of `help(paceline.tune)`.

Knows words only; types and defaults are those of `StudyOptions`.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from paceline.api.options import Options, StudyOptions

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

OPTION_HELP = {
    "What to tune": {
        "space": "The hyperparameters and their domains, such as {'lr': pl.loguniform(1e-4, 1)}. "
        "Leave it out if the function asks for them with trial.suggest_float(…) and the like.",
        "metric": "The metric to optimise, as the function reports it. Leave it out if the "
        "function returns or reports a single number.",
        "mode": "'min' or 'max'. A number without a metric's name is minimised by default.",
        "epochs": "How many epochs, and so reports, a trial has at most. Default: 1.",
        "range": "The lowest and the highest possible value of the metric, such as (0, 1): "
        "forecasts stay inside, and the policy bandit normalises values by it.",
        "first": "Configs to try first; hyperparameters they leave out are drawn.",
        "warm_start": "A study of the same store, or an Optuna study: the generator learns from "
        "its results before the first proposal.",
        "seed": "The seed of configs and training. Default: 0.",
    },
    "When to end": {
        "trials": "The most trials to open.",
        "deadline": "A duration such as '1h30m', 90 (seconds) or a timedelta; or a datetime "
        "(local time if it has no time zone). The time while no driver runs does not count.",
        "target": "End when a trial reports this value.",
        "over": "Compare the target with the mean of this many reports. Default: 1.",
        "slot_hours": "End when this many slot-hours are used.",
    },
    "How to decide": {
        "policy": "Decides which trials go on: a name such as 'asha' or 'pop:boundary=10', or an "
        "object such as pl.policies.Asha(eta=4). Default: by epochs, deadline and function.",
        "generator": "Proposes configs: 'tpe', 'random', 'grid', …, or an Optuna sampler. "
        "Default: 'tpe'; 'grid' if the space is made of grids.",
        "allocator": "Divides the slots among trials. Default: 'fixed'.",
        "curves": "Forecasts learning curves for the policies that use them. Default: 'pfn'.",
        "share": "Train epochs that trials have in common once.",
        "plan": "'name' or 'name@version': studies with the same plan and seed share epochs. "
        "Default: the function's code. None: share with no other study.",
    },
    "Where to run": {
        "slots": "How many trials run at once: a number of GPUs (of cores, if there are none), "
        "'cpu:4', 'gpu:2', 'ray', pl.Ray(gpus=8); or 'inline' to debug trials in this process.",
        "span": "The most slots for one trial. Default: 1.",
        "pack": "The most trials on one slot. Default: 1.",
        "needs": "The slots that an epoch needs: a function of the config or its name, "
        "'module:function', or a table, 'batch:257=2,513=4'.",
        "mps": "Let trials that share a GPU run at the same time, by NVIDIA's MPS.",
    },
    "What to keep": {
        "name": "The study's name. With a store, the same call resumes or extends the study.",
        "store": "Where the study is kept: 'sqlite:///runs.db', 'postgresql://user@host/db'. "
        "Default: in memory.",
        "files": "The folder for checkpoints and the output of trials.",
        "checkpoints": "Another place for checkpoints: a shared folder, or 's3://bucket/prefix'.",
        "keep_best": "Keep the last checkpoint of this many finished trials, the best ones. "
        "Default: of all.",
        "checkpoint_bytes": "The limit on all checkpoints together.",
        "cache_bytes": "The limit on local copies of checkpoints that are kept elsewhere.",
    },
    "When something goes wrong": {
        "retries": "How many failures a trial survives. Default: 3.",
        "hang": "A trial without a report for this long has hung, and is ended.",
        "progress": "Show progress: a live view on a terminal, a table in a notebook, else lines. "
        "False: print nothing.",
    },
}


def describe_options(function: Function) -> Function:
    """Add every option to a function's docstring and signature: a decorator."""
    lines = []
    for heading, options in OPTION_HELP.items():
        lines += ["", heading]
        for name, meaning in options.items():
            text = textwrap.fill(
                f"{name}: {meaning}", 92, initial_indent="  ", subsequent_indent="      "
            )
            lines.append(text)
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n" + "\n".join(lines) + "\n"
    signature = inspect.signature(function)
    own = [
        each
        for each in signature.parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    # `...` stands for a default that depends on the other options.
    defaults = {
        field.name: ... if field.default in (msgspec.NODEFAULT, msgspec.UNSET) else field.default
        for field in msgspec.structs.fields(StudyOptions)
    }
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name])
        for name in Options.__annotations__
    ]
    setattr(function, "__signature__", signature.replace(parameters=[*own, *named]))  # noqa: B010
    return function
