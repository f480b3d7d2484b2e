# SPDX-License-Identifier: Apache-2.0
"""Megatron's distributed optimizer: its state under other degrees of parallelism, and training that goes on with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("megatron.core")

import torch
from megatron_host import on_the_host
from megatron_jobs import Job, Kind, differences, reference

import shardwire.megatron as swm
import shardwire.torch as swt

SAME_LAYOUT = 0.0
OTHER_LAYOUT = 1e-6
HALF = 2e-2  # bf16 has 8 bits of precision


def change(rank: int, world: int, source: Kind, target: Kind, steps: int, rows: int | None = None) -> Any:
    """Trains under one layout, restores under another, and trains both on. (names that differ, losses, losses)."""
    with on_the_host(), swt.join() as session:
        before = Job(source, 1)
        before.train(3)
        for group in before.optimizer.param_groups:
            group["lr"] = 0.005  # as a scheduler does
        publication = swm.publish(session, [before.ddp], before.optimizer, step=3, snapshot="copy", vocab_size=rows,
                                  extra={"words": 7, "rank": swt.PerRank(rank)})
        if source.overlap:
            # Here each rank still has parameters of the step before, but for those that its own optimizer updates.
            before.ddp.start_param_sync(force_sync=True)
        expected = reference(before)
        losses = before.train(steps, seed=1)
        after = Job(target, 2)
        unlike = differences(expected, reference(after), rows)
        assert {name for name, value in expected.items() if isinstance(value, torch.Tensor) and value.numel() > 1 and value.any()
                and not name.endswith("bias:model")} <= {*unlike}, "the target has state of the source before it is restored"
        restored = swm.restore_into(session, [after.ddp], after.optimizer, step=3, verify="digest", vocab_size=rows)
        assert (restored.step, restored.extra) == (3, {"words": 7, "rank": rank})
        session.gather("restored", b"", 60)
        publication.retire()
        return differences(expected, reference(after), rows), losses, after.train(steps, seed=1)


def require_same(results: list[Any], tolerance: float, record: Any) -> None:
    farthest = 0.0
    for wrong, before, after in results:
        assert wrong == []
        assert len(before) == len(after) and min(before) > 0
        farthest = max(farthest, *(abs(old - new) / abs(old) for old, new in zip(before, after)))
    record("loss_difference", farthest)
    assert farthest <= tolerance


CASES = [
    # source, target, relative difference of losses
    (Kind(), Kind(), SAME_LAYOUT),
    (Kind(), Kind(tp=2), OTHER_LAYOUT),
    (Kind(tp=2), Kind(), OTHER_LAYOUT),
    (Kind(tp=2, swiglu=False), Kind(swiglu=False), OTHER_LAYOUT),
    (Kind(dtype=torch.bfloat16), Kind(dtype=torch.bfloat16), SAME_LAYOUT),
    (Kind(dtype=torch.bfloat16, tp=2), Kind(dtype=torch.bfloat16), HALF),
    (Kind(dtype=torch.float16), Kind(dtype=torch.float16, tp=2), HALF),
    (Kind(pp=2), Kind(tp=2), OTHER_LAYOUT),
    (Kind(), Kind(pp=2, tp=2), OTHER_LAYOUT),
    (Kind(tied=True, pp=2), Kind(tied=True), OTHER_LAYOUT),
    (Kind(overlap=True), Kind(overlap=True, tp=2), OTHER_LAYOUT),
    (Kind(dtype=torch.bfloat16, distributed=False, tp=2), Kind(dtype=torch.bfloat16), HALF),
    (Kind(), Kind(distributed=False), OTHER_LAYOUT),
]


def label(kind: Any) -> str:
    if not isinstance(kind, Kind):
        return ""
    return "-".join(f"{field.name}={getattr(kind, field.name)}" for field in dataclasses.fields(kind)
                    if getattr(kind, field.name) != field.default) or "plain"


@pytest.mark.parametrize("source, target, tolerance", CASES, ids=label)
def test_a_change_of_layout(pool, record_property, source, target, tolerance):
    require_same(pool(4, change, source, target, 5), tolerance, record_property)
