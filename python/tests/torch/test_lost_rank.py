# SPDX-License-Identifier: Apache-2.0
"""The last rank is lost, and another process takes its number: what docs/what-survives.md says of each wrapper."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch.distributed as dist
from keepers import keeper
from training import build, differences, reference, train

import shardwire as sw
import shardwire.torch as swt


def replaced(rank: int, world: int, wrapper: str, folder: str, survives: bool) -> Any:
    """The new rank restores, and the others do nothing. Its error, and the names of what differs then."""
    store = dist.FileStore(f"{folder}/store", world)
    model, optimizer = build(wrapper, "adamw", 1, world)
    train(model, optimizer, 2)
    before = reference(model, optimizer)
    session, error = swt.join(store, rank, world), None
    state = swt.State(model, optimizer)
    state.publish(session, step=7, snapshot="copy")
    session.gather("published", b"", 60)
    if rank == world - 1:
        del state, session  # without a goodbye
        gc.collect()
        model, optimizer = build(wrapper, "adamw", 2, world)
        with swt.join(store, rank, world) as session:
            try:
                assert swt.restore_into(session, model, optimizer, timeout=20 if survives else 6).step == 7
            except sw.Error as caught:
                error = type(caught), bool(caught.gaps)
    else:
        build(wrapper, "adamw", 2, world)  # wrappers are made together
    dist.barrier()
    session.close()
    # Where it has no state, it cannot take part in what gathers all.
    return error, differences(before, reference(model, optimizer)) if survives else []


@pytest.mark.parametrize("ranks, wrapper", [(2, "ddp"), (4, "hsdp")])
def test_a_replica_has_what_it_held(pool, tmp_path, ranks, wrapper):
    assert pool(ranks, replaced, wrapper, str(tmp_path), True) == [(None, [])] * ranks


@pytest.mark.parametrize("ranks, wrapper", [(2, "fsdp2"), (4, "fsdp2 x tp 2")])
def test_without_a_replica_an_error_lists_what_is_missing(pool, tmp_path, ranks, wrapper):
    results = pool(ranks, replaced, wrapper, str(tmp_path), False)
    assert results[-1][0] == (sw.TimedOut, True)  # until its deadline, it might publish its number itself


def step_apart(rank: int, world: int, wrapper: str, folder: str, job: str) -> Any:
    """The last rank is lost before it publishes a step that the others have published. The steps that are restored, and what differs."""
    store = dist.FileStore(f"{folder}/store", world)
    model, optimizer = build(wrapper, "adamw", 1, world)
    train(model, optimizer, 2)
    before = reference(model, optimizer)
    session = swt.join(store, rank, world, keeper=job)
    state = swt.State(model, optimizer)
    state.publish(session, step=7, keep=1)
    train(model, optimizer, 1)
    if rank < world - 1:
        state.publish(session, step=8, keep=1)
    session.gather("published", b"", 60)
    new_model, new_optimizer = build(wrapper, "adamw", 2, world)  # wrappers are made together
    new = swt.State(new_model, new_optimizer)
    if rank == world - 1:
        del state, session  # without a goodbye
        gc.collect()
        session = swt.join(store, rank, world, keeper=job)
        restored = new.restore(session, timeout=60).step
        new.publish(session, step=restored, keep=1)
    dist.barrier()
    if rank < world - 1:
        restored = new.restore(session, step=7, timeout=60).step
    session.barrier(60)
    session.close()
    return restored, differences(before, reference(new_model, new_optimizer))


@pytest.mark.parametrize("ranks, wrapper", [(2, "fsdp2"), (4, "hsdp")])
def test_with_a_keeper_all_go_back_to_the_step_that_all_had(pool, tmp_path, ranks, wrapper):
    with keeper(f"apart-{wrapper}") as (_, job):
        assert pool(ranks, step_apart, wrapper, str(tmp_path), job) == [(7, [])] * ranks
