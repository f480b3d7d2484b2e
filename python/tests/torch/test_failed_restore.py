# SPDX-License-Identifier: Apache-2.0
"""What a restore that fails leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardwire as sw
import shardwire.torch as swt


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
                swt.restore_into(session, target, other, deadline=10)
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
                swt.restore_into(session, target, other, deadline=10)
            assert dict(other.state) == {target.weight: {"momentum_buffer": None}}
