# SPDX-License-Identifier: Apache-2.0
"""Tensors and values by name, for adapters of frameworks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import shardwire as sw
import shardwire.torch as swt
from shardwire.torch._entries import Entries, publish_entries, restore_entries
from shardwire.torch._layouts import REPLICATED, Local


def _entries(fqn: str, tensor: torch.Tensor, *aliases: str) -> Entries:
    return Entries({sw.TensorKey(fqn, "param"): Local(tuple(tensor.shape), REPLICATED, tensor, tensor)},
                   {sw.TensorKey(fqn, "param_group"): {"lr": tensor.sum().item()}}, {alias: fqn for alias in aliases})


@pytest.mark.parametrize("theirs, mine", [(("a", "b"), ("a", "b")), (("a", "b"), ("b",)), (("a", "b"), ("b", "a"))])
def test_a_tied_parameter_is_found_under_each_of_its_names(theirs: tuple[str, ...], mine: tuple[str, ...]) -> None:
    with swt.join(dist.HashStore(), 0, 1) as session:
        with publish_entries(session, _entries(theirs[0], torch.ones(3), *theirs[1:]), step=1, name="tied", snapshot="none"):
            target = torch.zeros(3)
            inventory = session.await_step("tied", 1, 10)
            result, values = restore_entries(session, _entries(mine[0], target, *mine[1:]), inventory, name="tied", deadline=10)
            assert result.step == 1 and target.tolist() == [1, 1, 1]
            assert values == {sw.TensorKey(mine[0], "param_group"): {"lr": 3.0}}
            with pytest.raises(sw.LayoutMismatch, match=f"{mine[0]}:param: source has f32"):
                restore_entries(session, _entries(mine[0], torch.zeros(2), *mine[1:]), inventory, name="tied", deadline=10)


def test_what_no_peer_has_may_become_zero() -> None:
    with swt.join(dist.HashStore(), 0, 1) as session:
        with publish_entries(session, _entries("a", torch.ones(3)), step=1, name="absent", snapshot="none"):
            wanted = {shape: torch.full(shape, 7.0) for shape in [(3,), (1,), (1, 1), ()]}
            kept = torch.full((1,), 7.0)
            entries = Entries({sw.TensorKey("w", str(shape)): Local(shape, REPLICATED, tensor, tensor)
                               for shape, tensor in wanted.items()})
            entries.tensors[sw.TensorKey("kept", "")] = Local((1,), REPLICATED, kept, kept)
            restore_entries(session, entries, session.await_step("absent", 1, 10), name="absent", deadline=10,
                            absent={"w": "zero", "kept": "skip"})
            assert [tensor.tolist() for tensor in wanted.values()] == [[0, 0, 0], [0], [[0]], 7]
            assert kept.item() == 7
