"""The options of a Ray cluster and their errors, without a cluster."""

from __future__ import annotations

import sys

import pytest

import paceline as pl
from paceline.engines.process.ray.config import connect_ray, parse_ray


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ("ray", pl.Ray()),
        ("ray:gpu:8", pl.Ray(gpus=8)),
        ("ray:cpu:2@10.0.0.1:6379", pl.Ray(cpus=2, address="10.0.0.1:6379")),
        ("ray@ray://head:10001", pl.Ray(address="ray://head:10001")),
        (pl.Ray(gpus=1), pl.Ray(gpus=1)),
        ("cpu:4", None),
        (4, None),
        (None, None),
    ],
)
def test_a_cluster_is_parsed_from_slots(slots: object, expected: pl.Ray | None) -> None:
    assert parse_ray(slots) == expected


@pytest.mark.parametrize("slots", ["ray:8", "ray:gpu", "ray:tpu:2", "rays"])
def test_invalid_slots_are_refused_with_the_valid_forms(slots: str) -> None:
    with pytest.raises(pl.SpecError, match="is invalid: use 'ray' for all free slots"):
        parse_ray(slots)


def test_a_slot_is_a_gpu_or_a_cpu() -> None:
    with pytest.raises(pl.SpecError, match="a slot is one or the other"):
        pl.Ray(gpus=1, cpus=1)


@pytest.mark.parametrize("count", [0, -1, "many"])
def test_less_than_one_slot_is_refused(count: object) -> None:
    with pytest.raises(pl.SpecError, match=r"gpus=.* is invalid: must be at least 1"):
        pl.Ray(gpus=count)  # type: ignore[arg-type]


def test_a_relative_disk_is_refused() -> None:
    with pytest.raises(pl.SpecError, match=r"disk='scratch' is invalid: must be an absolute path"):
        pl.Ray(disk="scratch")


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pl.SpecError, match=r"pip install 'paceline\[ray\]'"):
        pl.tune(
            lambda trial: trial.report(loss=1.0),
            space={"a": pl.uniform(0, 1)},
            metric="loss",
            mode="min",
            epochs=1,
            trials=1,
            slots="ray",
        )


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_a_cluster_that_does_not_answer_is_reported_at_once(address: str) -> None:
    with pytest.raises(pl.SpecError, match="start one with `ray start --head`"):
        connect_ray(pl.Ray(address=address))
