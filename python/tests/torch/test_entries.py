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
