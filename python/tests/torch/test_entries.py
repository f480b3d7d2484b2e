# SPDX-License-Identifier: Apache-2.0
"""Tensors and values by name, for adapters of frameworks."""

from __future__ import annotations

import collections
import concurrent.futures
import pathlib
import re
import weakref
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
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


def test_each_restore_stops_at_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, stops = sw.Session.restore, list[bool]()
    monkeypatch.setattr(sw.Session, "restore", lambda *given, **options: stops.append(options.get("stop_at_values", False)) or begin(
        *given, **options))
    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    with swt.join(dist.HashStore(), 0, 1) as session, swt.publish(session, source, step=1):
        swt.restore_into(session, target, timeout=10)
        restore_entries(session, entries_of(target, ranks_of(session)), timeout=10)
        with swt.publish_state_dict(session, source.state_dict(), step=1):
            dcp.load(target.state_dict(), storage_reader=swt.PeerReader(session, timeout=10), no_dist=True)
    assert stops == [True, True, True]


class _Wrapped(nn.Module):
    """It has a parameter beside the module that it wraps, under the same name."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod = nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.ones(2, 2))


class _WrappedTwice(nn.Module):
    """`weight` is a further name of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self._orig_mod, self._checkpoint_wrapped_module = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self._orig_mod.weight, self._checkpoint_wrapped_module.weight = self.first.weight, self.second.weight


@pytest.mark.parametrize("model, words", [(_Wrapped(), "weight:param is the name of several tensors"),
                                          (_WrappedTwice(), "weight is a further name of first.weight and of second.weight")],
                         ids=["name", "further name"])
def test_two_tensors_of_one_name_are_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(sw.InvalidArgument, match=words):
        swt.catalog_of(model)


def test_a_value_that_cannot_be_sent_is_named() -> None:
    odd, model = collections.deque([1]), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.param_groups[0]["odd"] = odd
    with swt.join(dist.HashStore(), 0, 1) as session:
        with pytest.raises(sw.Unsupported, match="^clock: a collections.deque cannot be sent"):
            publish_entries(session, Entries(values={sw.TensorKey("clock", "ticks"): odd}), step=1)
        with pytest.raises(sw.Unsupported, match="^a: a collections.deque cannot be sent"):
            swt.publish_state_dict(session, {"a": odd})
        with pytest.raises(sw.Unsupported, match="^weight: a collections.deque cannot be sent"):
            swt.publish(session, model, optimizer, step=1)


def test_a_tensor_whose_dtype_nobody_can_send_is_named() -> None:
    odd = torch.empty(2, dtype=torch.bits8)
    with swt.join(dist.HashStore(), 0, 1) as session:
        with pytest.raises(sw.Unsupported, match="^a:odd: tensors of torch.bits8 cannot"):
            publish_entries(session, Entries({sw.TensorKey("a", "odd"): Local((2,), REPLICATED, odd, odd)}), step=1)
        with pytest.raises(sw.Unsupported, match="^a: tensors of torch.bits8 cannot"):
            swt.publish_state_dict(session, {"a": odd})


@pytest.mark.parametrize("kind", ["entries", "state dict", "model"])
def test_a_publication_keeps_memory_that_its_tensor_gives_up(kind: str) -> None:
    memory = numpy.ones(3, numpy.float32)
    kept, model = weakref.ref(memory), nn.Module()
    model.register_buffer("a", torch.from_numpy(memory))
    del memory
    with swt.join(dist.HashStore(), 0, 1) as session:
        if kind == "entries":
            publication = publish_entries(session, entries_of(model, ranks_of(session)), step=1)
        elif kind == "state dict":
            publication = swt.publish_state_dict(session, {"a": model.a}, step=1, snapshot="none")
        else:
            publication = swt.publish(session, model, step=1)
        model.a.data = torch.zeros(3)
        assert kept() is not None
        publication.retire()
