# SPDX-License-Identifier: Apache-2.0
"""Megatron's distributed optimizer: its state under other degrees of parallelism, and training that goes on with it."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
from typing import Any

import pytest

pytest.importorskip("megatron.core")

import torch
import torch.distributed as dist
from megatron_host import on_the_host
from megatron_jobs import WORDS, Job, Kind, differences, reference

import shardwire as sw
import shardwire.megatron as swm
import shardwire.torch as swt

SAME_LAYOUT = 0.0
OTHER_LAYOUT = 1e-6
HALF = 2e-2  # bf16 has 8 bits of precision


def change(rank: int, world: int, source: Kind, target: Kind, steps: int, rows: int | None = None, used: int = 0) -> Any:
    """Trains under one layout, restores under another, and trains both on. (names that differ, losses, losses).

    `used`: steps that the target has trained before it is restored.
    """
    with on_the_host(), swt.join() as session:
        before = Job(source, 1)
        before.train(3)
        for group in before.optimizer.param_groups:
            group["lr"] = 0.005  # as a scheduler does
        publication = swm.publish(session, before.chunks, before.optimizer, step=3, snapshot="copy", vocab_size=rows,
                                  extra={"words": 7, "rank": swt.PerRank(rank)})
        if source.overlap:
            # Here each rank still has parameters of the step before, but for those that its own optimizer updates.
            before.ddp.start_param_sync(force_sync=True)
        expected = reference(before)
        losses = before.train(steps, seed=1)
        after = Job(target, 2)
        after.train(used)
        unlike = differences(expected, reference(after), rows)
        assert {name for name, value in expected.items() if isinstance(value, torch.Tensor) and value.numel() > 1 and value.any()
                and not name.endswith("bias:model")} <= {*unlike}, "the target has state of the source before it is restored"
        restored = swm.restore_into(session, after.chunks, after.optimizer, step=3, verify="digest", vocab_size=rows)
        assert (restored.step, restored.extra) == (3, {"words": 7, "rank": rank})
        session.gather("restored", b"", 60)
        publication.retire()
        assert {group["lr"] for group in after.optimizer.param_groups} == {0.005}
        return differences(expected, reference(after), rows), losses, after.train(steps, seed=1)


def require_same(results: list[Any], tolerance: float, record: Any) -> None:
    farthest = 0.0
    for wrong, before, after in results:
        assert wrong == []
        assert len(before) == len(after) and all(loss > 0 for loss in before)
        farthest = max(farthest, 0.0, *(abs(old - new) / abs(old) for old, new in zip(before, after)))
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
    (Kind(instances=2), Kind(tp=2), OTHER_LAYOUT),
    (Kind(tp=2), Kind(instances=2), OTHER_LAYOUT),
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


def test_a_target_that_has_trained(pool, record_property):
    kind = Kind(dtype=torch.bfloat16)
    require_same(pool(4, change, kind, kind, 5, None, 2), SAME_LAYOUT, record_property)


def test_groups_without_elements_on_a_rank(pool, record_property):
    """Embedding and output layer are a group of their own, and the first and last parameters of the buffer that ranks divide."""
    results = pool(4, change, Kind(decoupled_lr=0.02), Kind(decoupled_lr=0.03), 5)
    require_same(results, SAME_LAYOUT, record_property)


def test_momentum_of_sgd(pool, record_property):
    kind = Kind(distributed=False, optimizer="sgd")
    require_same(pool(4, change, kind, dataclasses.replace(kind, tp=2), 5), OTHER_LAYOUT, record_property)


@pytest.mark.parametrize("source, target, steps", [({"ep": 2}, {}, 5), ({}, {"ep": 4}, 5), ({"ep": 2}, {"ep": 2, "tp": 2}, 0)],
                         ids=str)
def test_experts(pool, record_property, source, target, steps):
    """With expert parallelism there are two optimizers in a chain: of the experts, and of the others.

    Megatron trains experts under tensor parallelism with sequence parallelism only, which its layers for the host lack.
    """
    kind = Kind(experts=4)
    results = pool(4, change, dataclasses.replace(kind, **source), dataclasses.replace(kind, **target), steps)
    for wrong, _, _ in results:
        if source.get("ep", 1) == 1 or target.get("ep", 1) == 1:
            assert wrong in ([], ["group 2"]), "only the group of experts may be missing on the side without such a group"
            wrong.clear()
    require_same(results, OTHER_LAYOUT, record_property)


def test_interleaved_stages(pool, record_property):
    """Not trained under interleaved stages."""
    interleaved = Kind(layers=4, pp=2, vp=2, tp=2)
    require_same(pool(4, change, Kind(layers=4), interleaved, 0), SAME_LAYOUT, record_property)


def gathering(rank: int, world: int) -> Any:
    with on_the_host(), swt.join() as session:
        job = Job(Kind(overlap=True), 1)
        job.train(1)
        publication = swm.publish(session, job.chunks, job.optimizer, step=1, snapshot="copy")
        job.ddp.start_param_sync()
        with pytest.raises(sw.InvalidArgument, match="under way"):
            swm.restore_into(session, job.chunks, job.optimizer)
        for bucket in job.ddp.bucket_groups:
            bucket.finish_param_sync(skip_next_bucket_dispatch=True)
        swm.restore_into(session, job.chunks, job.optimizer)
        session.gather("restored", b"", 60)
        publication.retire()


def test_a_gather_under_way(pool):
    pool(4, gathering)


def test_another_padding_of_the_vocabulary(pool):
    # Padding takes part in the softmax, so losses differ.
    results = pool(4, change, Kind(words=WORDS + 3), Kind(words=WORDS + 6, tp=2), 1, WORDS)
    assert [wrong for wrong, _, _ in results] == [[]] * 4


def fewer(rank: int, world: int, folder: str, source: Kind, target: Kind) -> Any:
    """From three data-parallel ranks to two, which form a process group of their own. The third one stays a source."""
    with on_the_host(), swt.join() as session:
        before = Job(source, 1)
        before.train(3)
        expected = reference(before)
        publication = swm.publish(session, before.ddp, before.optimizer, step=3, snapshot="copy")
        losses = before.train(5, seed=1)
        result: Any = ([], losses, losses)
        dist.destroy_process_group()
        if rank < 2:
            dist.init_process_group("gloo", store=dist.FileStore(folder + "/two", 2), rank=rank, world_size=2)
            after = Job(target, 2)
            assert differences(expected, reference(after))
            swm.restore_into(session, after.ddp, after.optimizer)
            result = (differences(expected, reference(after)), losses, after.train(5, seed=1))
            dist.destroy_process_group()
        session.gather("restored", b"", 60)
        publication.retire()
        return result


@pytest.mark.parametrize("target", [Kind(), Kind(tp=2)], ids=label)
def test_from_three_ranks_to_two(pool, record_property, tmp_path, target):
    try:
        require_same(pool(3, fewer, str(tmp_path), Kind(), target), OTHER_LAYOUT, record_property)
    finally:
        pool.stop()  # its process group is gone


def refused(rank: int, world: int) -> Any:
    """Restores that have to fail. Messages and types, and what the failures left changed."""
    with on_the_host(), swt.join() as session:
        before = Job(Kind(dtype=torch.bfloat16), 1)
        publication = swm.publish(session, before.ddp, before.optimizer, step=0, name="fresh")
        publication.retire()
        publication = swm.publish(session, before.ddp, before.optimizer, step=0, name="fresh", snapshot="copy")
        before.train(1)
        trained = swm.publish(session, before.ddp, before.optimizer, step=1, snapshot="copy")
        parameters = swm.publish(session, before.ddp, None, step=1, name="parameters", snapshot="copy")
        session.gather("published", b"", 60)
        found = []

        def attempt(kind: Kind, steps: int = 0, chunk: Any = None, **options: Any) -> None:
            target = Job(kind, 2)
            target.train(steps)
            known = reference(target)
            chunk = chunk or target.ddp
            with pytest.raises(sw.Error) as raised:
                swm.restore_into(session, chunk, target.optimizer, timeout=3, **options)
            left = differences(known, reference(target))
            left += [f"state {name}" for one in target.optimizer.chained_optimizers for state in one.state.values()
                     for name in state if not steps]
            found.append((type(raised.value).__name__, str(raised.value), left))

        same = Kind(dtype=torch.bfloat16)
        attempt(Kind(dtype=torch.bfloat16, hidden=16))  # shapes
        attempt(Kind())  # types
        attempt(same, step=7)  # nobody has the step
        attempt(same, name="nobody")
        attempt(same, 1, name="fresh")  # states that nobody has
        attempt(same, name="parameters")  # options that nobody has
        attempt(Kind(dtype=torch.bfloat16, words=WORDS + 2))  # padding
        attempt(same, chunk=Job(same, 3).ddp)  # the optimizer of another model
        session.gather("refused", b"", 60)
        fresh = Job(same, 2)
        swm.restore_into(session, fresh.ddp, fresh.optimizer, name="fresh")
        assert not any(state for one in fresh.optimizer.chained_optimizers for state in one.state.values())
        session.gather("restored", b"", 60)
        for one in (publication, trained, parameters):
            one.retire()
        return found


def test_what_is_refused(pool):
    for found in pool(2, refused):
        kinds = [kind for kind, _, _ in found]
        assert kinds == ["LayoutMismatch", "LayoutMismatch", "TimedOut", "TimedOut", "LayoutMismatch", "LayoutMismatch",
                         "LayoutMismatch", "InvalidArgument"]
        names = ["embedding.word_embeddings.weight:param: source has bf16 (16, 12), target wants bf16 (16, 16)",
                 "source has bf16 (16, 12), target wants f32 (16, 12)", "7", "nobody", "exp_avg", "param_group",
                 "embedding.word_embeddings.weight:param: source has bf16 (16, 12), target wants bf16 (18, 12)",
                 "parameter of shape"]
        for (_, message, left), name in zip(found, names):
            assert name in message
            assert left == []


def one_rank(rank: int, world: int) -> Any:
    """A rank restores while the others do nothing: no collective may be needed."""
    with on_the_host(), swt.join() as session:
        kind = Kind(dtype=torch.bfloat16)
        before = Job(kind, 1)
        before.train(2)
        expected = before.parts()
        publication = swm.publish(session, before.ddp, before.optimizer, step=2, snapshot="copy")
        after = Job(kind, 2)
        session.gather("published", b"", 60)
        known = after.parts()
        if rank == 1:
            swm.restore_into(session, after.ddp, after.optimizer)
        session.gather("restored", b"", 60)
        publication.retire()
        return differences(expected if rank == 1 else known, after.parts())


def test_one_rank_alone(pool):
    assert pool(4, one_rank) == [[]] * 4


def example(rank: int, world: int, code: str) -> Any:
    with on_the_host():
        before = Job(Kind(), 1)
        before.train(2)
        expected = reference(before)
        after = Job(Kind(tp=2), 2)
        scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1)
        names = {"model_chunks": before.chunks, "optimizer": before.optimizer, "step": 2, "new_model_chunks": after.chunks,
                 "new_optimizer": after.optimizer, "scheduler": scheduler}
        exec(code, names)
        names["session"].close()
        return names["restored"].step, differences(expected, reference(after))


def test_the_example(pool):
    text = (pathlib.Path(__file__).parents[3] / "docs" / "megatron.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert pool(4, example, code) == [(2, [])] * 4


def fresh(rank: int, world: int, kind: Kind) -> Any:
    with on_the_host():
        return reference(Job(kind, 1))


def test_the_reference_is_right(pool):
    """Weights are made whole by one seed and then split, so models that are split in different ways are equal."""
    plain = pool(4, fresh, Kind())[0]
    for kind in (Kind(tp=2), Kind(tp=2, overlap=True)):
        assert differences(plain, pool(4, fresh, kind)[3]) == []


def test_boxes_of_ranges():
    """Against a list of all elements."""
    choose = random.Random(5)
    for _ in range(400):
        shape = tuple(choose.randint(1, 4) for _ in range(choose.randint(0, 4)))
        order = choose.sample(range(len(shape)), len(shape))
        strides, stride = [0] * len(shape), choose.randint(1, 2)
        for dim in order:
            strides[dim] = stride
            stride = stride * shape[dim] + choose.randint(0, 2)
        first = choose.randint(0, 3)
        start = choose.randint(0, stride + 3)
        end = start + choose.randint(0, stride + 3)
        places = {index: first + sum(at * step for at, step in zip(index, strides))
                  for index in itertools.product(*map(range, shape))}
        found = [index for offset, size in swm._boxes(shape, tuple(strides), first, start, end)
                 for index in itertools.product(*(range(at, at + count) for at, count in zip(offset, size)))]
        assert sorted(found) == sorted(index for index, place in places.items() if start <= place < end)
