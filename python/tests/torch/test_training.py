# SPDX-License-Identifier: Apache-2.0
"""Training goes on under another layout with the same state: every tensor, step and option, and the same losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from training import build, differences, reference, train

import shardwire.torch as swt

SAME_LAYOUT = 0.0
OTHER_LAYOUT = 1e-6


def change(rank: int, world: int, source: str, target: str, optimizer: str, other: str, options: dict[str, Any]) -> Any:
    """Trains under one layout, restores under another, and trains both on. (names that differ, losses, losses)."""
    with swt.join() as session:
        before, before_optimizer = build(source, optimizer, 1, world, **options)
        after, after_optimizer = build(target, other, 2, world, **options)
        expected, publication = {}, None
        if before is not None:
            train(before, before_optimizer, 3)
            expected = reference(before, before_optimizer)
            members = int(source.partition(" over ")[2] or world)
            publication = swt.publish(session, before, before_optimizer, step=3, ranks=members,
                                      extra={"words": 7, "rank": swt.PerRank(rank)})
        expected = from_first(expected)
        if after is not None:
            fresh = reference(after, after_optimizer)
            assert differences(expected, fresh), "the target has the source's state before it is restored"
            restored = swt.restore_into(session, after, after_optimizer, step=3, verify="digest")
            # A rank beyond those that publish has nothing of its own to receive.
            own = {"rank": rank} if before is not None else {}
            assert (restored.step, restored.extra) == (3, {"words": 7, **own})
        session.gather("restored", b"", 60)
        if publication is not None:
            publication.retire()
        wrong = differences(expected, reference(after, after_optimizer)) if after is not None else []
        # Ranks without the source compare with the losses of rank 0: all ranks train on the same words.
        losses = from_first(train(before, before_optimizer, 12, seed=1) if before is not None else [])
        return wrong, losses, train(after, after_optimizer, 12, seed=1) if after is not None else losses


def from_first(value: Any) -> Any:
    """Rank 0's value."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


CASES = [
    # ranks, source, target, relative difference of losses
    (1, "plain", "compiled", SAME_LAYOUT),
    (4, "fsdp2", "fsdp2", SAME_LAYOUT),
    (4, "fsdp2", "fsdp2 over 3", OTHER_LAYOUT),
    (4, "fsdp2", "fsdp2 x tp 2", OTHER_LAYOUT),
    (4, "fsdp2 x tp 2", "hsdp", OTHER_LAYOUT),
    (4, "tp", "fsdp2 x tp 2", OTHER_LAYOUT),
    (4, "hsdp", "fsdp2", OTHER_LAYOUT),
    (4, "ddp", "tp", OTHER_LAYOUT),
    (4, "fsdp1", "fsdp2", OTHER_LAYOUT),
    (4, "fsdp2", "fsdp1", OTHER_LAYOUT),
    (4, "fsdp1 original", "fsdp2", OTHER_LAYOUT),
    (4, "fsdp2", "fsdp1 original", OTHER_LAYOUT),
    (4, "fsdp1 grad_op", "fsdp1 original", OTHER_LAYOUT),
    (4, "fsdp1 grad_op original", "fsdp1", OTHER_LAYOUT),
    (4, "fsdp1 no_shard", "fsdp1 hybrid original", OTHER_LAYOUT),
    (4, "fsdp1 no_shard original", "fsdp1 hybrid", OTHER_LAYOUT),
    (4, "fsdp1 hybrid", "fsdp1 grad_op", OTHER_LAYOUT),
    (4, "fsdp1 hybrid original", "fsdp1 no_shard", OTHER_LAYOUT),
    (6, "fsdp2 x tp 2", "fsdp2 x tp 2", SAME_LAYOUT),  # 28 and 14 rows over 3 x 2
    (6, "fsdp2", "fsdp2 x tp 2", OTHER_LAYOUT),
    (8, "fsdp2 over 4", "fsdp2", OTHER_LAYOUT),
]


def require_same(results: list[Any], tolerance: float, record: Any) -> None:
    farthest = 0.0
    for wrong, before, after in results:
        assert wrong == []
        for old, new in zip(before, after):
            farthest = max(farthest, abs(old - new) / abs(old))
    record("loss_difference", farthest)
    assert farthest <= tolerance


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ranks, source, target, tolerance", CASES)
def test_a_change_of_layout(pool, record_property, ranks, source, target, tolerance):
    optimizer = "one group" if "fsdp1" in source + target else "adamw"
    results = pool(ranks, change, source, target, optimizer, optimizer, {})
    require_same(results, tolerance, record_property)


# torch's Adafactor does not run on DTensors.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer, wrapper", [("adam amsgrad", "fsdp2"), ("adamw fused", "fsdp2"), ("sgd", "fsdp2"),
                                                ("adagrad", "fsdp2"), ("rmsprop", "fsdp2"), ("adafactor", "ddp")])
def test_an_optimizer(pool, record_property, optimizer, wrapper):
    results = pool(4, change, wrapper, "hsdp" if wrapper == "fsdp2" else wrapper, optimizer, optimizer, {})
    require_same(results, OTHER_LAYOUT, record_property)


@pytest.mark.parametrize("source, target", [("one group", "zero"), ("zero", "one group")])
def test_zero_redundancy(pool, record_property, source, target):
    require_same(pool(4, change, "ddp", "ddp", source, target, {}), SAME_LAYOUT, record_property)


def test_bf16_parameters(pool, record_property):
    results = pool(4, change, "fsdp2", "fsdp2 x tp 2", "adamw", "adamw", {"dtype": torch.bfloat16})
    require_same(results, 1e-2, record_property)  # bf16 has 8 bits of precision


def test_tied_parameters(pool, record_property):
    results = pool(4, change, "ddp", "fsdp2", "adamw", "adamw", {"tied": True})
    require_same(results, OTHER_LAYOUT, record_property)
