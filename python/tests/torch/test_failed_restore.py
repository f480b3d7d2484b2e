# SPDX-License-Identifier: Apache-2.0
"""What a restore that fails leaves behind."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

import shardwire as sw
import shardwire.torch as swt
from shardwire.torch.adapter import Entries, Local, ranks_of, restore_entries


def _trained(make: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = make(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)],
                         ids=["adamw", "sgd"])
@pytest.mark.parametrize("wrong", ["dtype", "name"])
def test_an_optimizer_gets_no_states_from_a_restore_that_fails(make: Any, wrong: str) -> None:
    with swt.join(dist.HashStore(), 0, 1) as session:
        source, optimizer = _trained(make)
        with swt.publish(session, source, optimizer, step=1):
            target: nn.Module = nn.Linear(3, 4)
            if wrong == "dtype":
                target = target.double()
            else:
                target.register_parameter("more", nn.Parameter(torch.ones(2)))
            other = make(target.parameters())
            before = [parameter.clone() for parameter in target.parameters()]
            with pytest.raises(sw.LayoutMismatch):
                swt.restore_into(session, target, other, timeout=10)
            assert not other.state
            assert all(map(torch.equal, before, target.parameters()))


def test_a_state_that_was_none_stays_none_after_a_restore_that_fails() -> None:
    with swt.join(dist.HashStore(), 0, 1) as session:
        source, optimizer = _trained(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
        with swt.publish(session, source, optimizer, step=1):
            target = nn.Linear(3, 4).double()
            other = torch.optim.SGD(target.parameters(), lr=0.1, momentum=0.9)
            other.state[target.weight]["momentum_buffer"] = None
            with pytest.raises(sw.LayoutMismatch):
                swt.restore_into(session, target, other, timeout=10)
            assert dict(other.state) == {target.weight: {"momentum_buffer": None}}


_SOON = 8  # a rank whose publication has ended might publish again until then


def _into_model(session: sw.Session) -> None:
    swt.restore_into(session, nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}), timeout=_SOON, ranks=[0])


def _by_dcp(session: sw.Session) -> None:
    wanted = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}).state_dict()
    dcp.load(wanted, storage_reader=swt.PeerReader(session, name="torch", timeout=_SOON, ranks=[0]), no_dist=True)


def _entries(session: sw.Session) -> None:
    tensor = torch.zeros(2, 2)
    entries = Entries({sw.TensorKey("b.weight", "param"): Local((2, 2), sw.Layout.replicated(), tensor, tensor)})
    restore_entries(session, entries, timeout=_SOON, ranks=ranks_of(session, [0]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["retires", "closes"])
@pytest.mark.parametrize("restore", [_into_model, _by_dcp, _entries], ids=["restore_into", "dcp.load", "restore_entries"])
def test_a_publisher_that_leaves_during_a_restore_is_named(restore: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, kept = dist.HashStore(), []
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        reader, stays, leaves = threads.map(lambda rank: swt.join(store, rank, 3), range(3))
    look = sw.Session.await_step

    def look_before_it_leaves(*arguments: Any) -> sw.Inventory:
        inventory = look(*arguments)
        kept[1].retire() if how == "retires" else leaves.close()
        return inventory

    monkeypatch.setattr(sw.Session, "await_step", look_before_it_leaves)
    with reader, stays, leaves:
        for session, part in ((stays, "a"), (leaves, "b")):
            model = nn.ModuleDict({part: nn.Linear(2, 2)})
            kept.append(swt.publish_state_dict(session, model.state_dict(), name="torch", step=1, ranks=[1, 2])
                        if restore is _by_dcp else swt.publish(session, model, step=1, ranks=[1, 2]))
        expected, text = ((sw.Withdrawn, r"ranks \[1\] published step 1 of 'torch' when this restore began, and no longer do")
                          if how == "retires" else (sw.PeerLost, "source rank 1 of 2 has not published 'torch': member 2 has left"))
        # What dcp raises has the text only.
        with pytest.raises(CheckpointException if restore is _by_dcp else expected, match=text) as raised:
            restore(reader)
        assert restore is _by_dcp or raised.value.retryable
        assert restore is _by_dcp or how == "closes" or raised.value.ranks == [1]
