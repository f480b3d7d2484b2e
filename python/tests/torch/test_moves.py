# SPDX-License-Identifier: Apache-2.0
"""Trainers with few and uneven rows, odd parameters, several optimizers, and in parts of the job, restored from peers."""

from __future__ import annotations

import dataclasses
from typing import Any

import moves
import pytest
import torch
from trainers import OPTIMIZERS, Spec

UNEVEN = (("rows", 7), ("width", 10))
EQUAL, CLOSE = 0.0, 1e-6


def fsdp1(mesh: tuple[int, ...] = (4,), strategy: str = "FULL_SHARD", orig: bool = True, **options: Any) -> Spec:
    return Spec("fsdp1", mesh, strategy=strategy, orig=orig, optimizer="one_group", **options)


def fsdp2(*mesh: int, **options: Any) -> Spec:
    return Spec("fsdp2", mesh, **options)


FSDP2 = fsdp2(4, optimizer="one_group", net=UNEVEN)


@pytest.fixture
def check(pool, record_property):
    def same(source: Spec, target: Spec, tolerance: float, **options: Any) -> None:
        results = pool(4, moves.move, *moves.ordered(source, target, **options))
        record_property("loss_difference", max(result["loss"] for result in results))
        record_property("seconds", max(result["seconds"] for result in results))
        for rank, result in enumerate(results):
            assert result["wrong"] == [], f"rank {rank}"
            assert result["names"] > 60 and result["step"] == moves.STEPS
            assert result["loss"] <= tolerance, f"rank {rank}"

    return same


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source, target, tolerance", [
    pytest.param(fsdp2(3), fsdp2(4), CLOSE, id="3-4"),
    pytest.param(fsdp2(4, net=UNEVEN), fsdp2(4, net=UNEVEN), EQUAL, id="uneven 4-4"),
    pytest.param(fsdp2(4, net=UNEVEN), fsdp2(3, net=UNEVEN), CLOSE, id="uneven 4-3"),
    pytest.param(Spec("zero", (4,)), Spec("ddp", (3,), "one_group"), CLOSE, id="zero 4-ddp 3"),
    pytest.param(fsdp2(4, optimizer="one_group"), Spec("zero", (2,)), CLOSE, id="fsdp2-zero 2"),
    pytest.param(Spec("stages", (2,)), Spec("plain"), EQUAL, id="stages-plain"),
    pytest.param(Spec("plain"), Spec("stages", (2,)), EQUAL, id="plain-stages"),
    pytest.param(Spec("compiled"), fsdp2(2), CLOSE, id="compiled-fsdp2"),
    pytest.param(fsdp2(2), Spec("compiled"), CLOSE, id="fsdp2-compiled"),
    *(pytest.param(*pair, CLOSE, id=f"{'orig' if orig else 'flat'} {shape} {way}")
      for orig in (True, False) for shape in (3, 4) for one in [fsdp1((shape,), orig=orig, net=UNEVEN)]
      for way, pair in (("to fsdp2", (one, FSDP2)), ("from fsdp2", (FSDP2, one)))),
    pytest.param(fsdp1(orig=False), fsdp1((3,), orig=False), CLOSE, id="flat 4-3"),
])
def test_layouts(check, source, target, tolerance):
    check(source, target, tolerance)


def test_a_target_that_has_trained(check):
    check(fsdp2(4), fsdp2(4), EQUAL, warm=True)


@pytest.mark.parametrize("target", [Spec("plain"), fsdp2(4)], ids=["plain", "fsdp2"])
def test_a_wrong_bit_is_seen(pool, target):
    results = pool(4, moves.move, *moves.ordered(fsdp2(4), target, plant=True))
    for rank in target.members:
        assert len(results[rank]["wrong"]) == 1 and "exp_avg_sq" in results[rank]["wrong"][0]


@pytest.mark.parametrize("optimizer", ["two", "wide"])
@pytest.mark.parametrize("target", [fsdp2(3), Spec("plain")], ids=["3", "plain"])
def test_several_optimizers_and_own_ones(check, optimizer, target):
    check(fsdp2(4, optimizer=optimizer), dataclasses.replace(target, optimizer=optimizer), CLOSE)


def test_capturable(check):
    try:
        for optimizer in OPTIMIZERS["capturable"]([torch.ones(2, 2, requires_grad=True)]):
            optimizer.param_groups[0]["params"][0].sum().backward()
            optimizer.step()
    except (AssertionError, RuntimeError) as error:
        pytest.skip(f"torch: {error}")
    check(fsdp2(4, optimizer="capturable"), fsdp2(3, optimizer="capturable"), CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size, tolerance", [(4, EQUAL), (3, 1e-3)])
def test_muon(check, size, tolerance):
    """Its matrix products are in bfloat16, so losses of other layouts are less close."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    check(fsdp2(4, optimizer="muon"), fsdp2(size, optimizer="muon"), tolerance)


@pytest.mark.parametrize("size, tolerance", [(4, EQUAL), (3, 1e-2)])
def test_bf16_parameters_with_float32_moments(check, size, tolerance):
    source = fsdp2(4, optimizer="wide", dtype=torch.bfloat16)
    check(source, dataclasses.replace(source, mesh=(size,)), tolerance)


PAIRS = [
    pytest.param(fsdp2(4), fsdp2(3), id="fsdp2 4-3"),
    pytest.param(fsdp1(), fsdp2(4, optimizer="one_group"), id="fsdp1-fsdp2"),
    pytest.param(fsdp2(4, optimizer="one_group"), fsdp1(), id="fsdp2-fsdp1"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["tied", "frozen", "unused"])
@pytest.mark.parametrize("source, target", PAIRS)
def test_tied_frozen_and_unused(pool, check, source, target, kind):
    source, target = (dataclasses.replace(one, net=((kind, True),)) for one in (source, target))
    if kind != "unused" or target.wrapper != "fsdp1":
        check(source, target, CLOSE)
        return
    # Torch cannot gather the state of a flat parameter some of which has none; that of a trained target is complete.
    for result in pool(4, moves.move, *moves.ordered(source, target, warm=True, absent={"spare.*": "skip"})):
        assert {tuple(name.split()[:2]) for name in result["wrong"]} == {("state", "spare.weight"), ("state", "spare.bias")}
        assert result["loss"] <= CLOSE


def test_one_rank_of_hsdp_is_replaced_alone(pool, record_property):
    results = pool(4, moves.replace_alone, Spec("hsdp", (2, 2)))
    assert [result["damaged"] for result in results] == [False, False, False, True]
    for result in results:
        assert result["same"] and result["wrong"] == []
        assert result["loss"] == EQUAL
    record_property("seconds", results[-1]["seconds"])


def test_schedulers_scaler_and_random_state(pool):
    results = pool(4, moves.extras, fsdp2(4))
    for result in results:
        assert result["differed"] == [True, True, True]
        assert result["ours"] == result["theirs"]
        assert result["rates"][0] == result["rates"][1]
    states = [result["ours"][2] for result in results]
    assert all(states[0] != other for other in states[1:])
