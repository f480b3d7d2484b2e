# SPDX-License-Identifier: Apache-2.0
"""Tensors and values by name, for adapters of frameworks."""

from __future__ import annotations

import concurrent.futures
import pathlib
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardwire as sw
import shardwire.torch as swt
from shardwire.torch.adapter import Entries, Local, entries_of, publish_entries, ranks_of, restore_entries

REPLICATED = sw.Layout.replicated()


def _entries(fqn: str, tensor: torch.Tensor, *aliases: str) -> Entries:
    return Entries({sw.TensorKey(fqn, "param"): Local(tuple(tensor.shape), REPLICATED, tensor, tensor)},
                   {sw.TensorKey(fqn, "param_group"): {"lr": tensor.sum().item()}}, {alias: fqn for alias in aliases})


@pytest.mark.parametrize("theirs, mine", [(("a", "b"), ("a", "b")), (("a", "b"), ("b",)), (("a", "b"), ("b", "a"))])
def test_a_tied_parameter_is_found_under_each_of_its_names(theirs: tuple[str, ...], mine: tuple[str, ...]) -> None:
    with swt.join(dist.HashStore(), 0, 1) as session:
        with publish_entries(session, _entries(theirs[0], torch.ones(3), *theirs[1:]), step=1, name="tied", snapshot="none"):
            target = torch.zeros(3)
            result, values = restore_entries(session, _entries(mine[0], target, *mine[1:]), step=1, name="tied", timeout=10)
            assert result.step == 1 and target.tolist() == [1, 1, 1]
            assert values == {sw.TensorKey(mine[0], "param_group"): {"lr": 3.0}}
            with pytest.raises(sw.LayoutMismatch, match=f"{mine[0]}:param: source has f32"):
                restore_entries(session, _entries(mine[0], torch.zeros(2), *mine[1:]), name="tied", timeout=10)


def test_what_no_peer_has_may_become_zero() -> None:
    with swt.join(dist.HashStore(), 0, 1) as session:
        with publish_entries(session, _entries("a", torch.ones(3)), step=1, name="absent", snapshot="none"):
            wanted = {shape: torch.full(shape, 7.0) for shape in [(3,), (1,), (1, 1), ()]}
            kept = torch.full((1,), 7.0)
            entries = Entries({sw.TensorKey("w", str(shape)): Local(shape, REPLICATED, tensor, tensor)
                               for shape, tensor in wanted.items()})
            entries.tensors[sw.TensorKey("kept", "")] = Local((1,), REPLICATED, kept, kept)
            restore_entries(session, entries, step=1, name="absent", timeout=10, absent={"w": "zero", "kept": "skip"})
            assert [tensor.tolist() for tensor in wanted.values()] == [[0, 0, 0], [0], [[0]], 7]
            assert kept.item() == 7


def test_the_adapter_that_the_documents_show() -> None:
    text = (pathlib.Path(__file__).parents[3] / "docs/torch.md").read_text()
    [code] = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "def entries_of_table" in code]
    shown: dict[str, Any] = {}
    exec(compile(code, "docs/torch.md", "exec"), shown)
    store = dist.HashStore()
    table = torch.arange(20.0).reshape(5, 4)
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        one, other, reader = threads.map(lambda rank: swt.join(store, rank, 3), range(3))
    with one, other, reader:
        with shown["publish"](one, table[:2], 0, 5, 7, step=3), shown["publish"](other, table[2:], 2, 5, 7, step=3):
            rows = torch.zeros(4, 4)
            assert shown["restore"](reader, rows, 1, 5) == 7
            assert torch.equal(rows, table[1:])


def test_a_model_becomes_entries_and_a_function_makes_them_once_the_publications_are_known() -> None:
    source, target = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    with torch.no_grad():
        source.weight.fill_(5)
        source.running_mean.fill_(6)
    seen: list[int] = []
    with swt.join(dist.HashStore(), 0, 1) as session:
        ranks = ranks_of(session)

        def wanted(inventory: sw.Inventory) -> Entries:
            seen.append(inventory.step)
            return entries_of(target, ranks)

        with publish_entries(session, entries_of(source, ranks), step=4):
            result, values = restore_entries(session, wanted, timeout=10)
    assert seen == [4] and result.step == 4 and values == {}
    assert all(torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True))
