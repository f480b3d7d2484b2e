# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torchao that keep quantized states, under FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import shardwire.torch as swt

WIDTH = 256


def _trainer(kind: str, ranks: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.compile = lambda *arguments, **options: (lambda function: function) if not arguments else arguments[0]
    from torchao import optim

    torch.manual_seed(steps)
    model = fully_shard(nn.Linear(WIDTH, 3 * WIDTH), mesh=DeviceMesh("cpu", list(range(ranks))))
    optimizer = getattr(optim, kind)(model.parameters(), lr=torch.tensor(1e-2))
    for step in range(steps):
        model(torch.full((2, WIDTH), float(step))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _whole(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Gathered by torch."""
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        for state, value in {"": parameter.detach(), **optimizer.state[parameter]}.items():
            if isinstance(value, DTensor):
                local = value.to_local()
                value = value.full_tensor() if type(local) is torch.Tensor else DTensor.from_local(
                    local.dequantize(), value.device_mesh, value.placements, run_check=False, shape=value.shape,
                    stride=value.stride()).full_tensor()
            found[f"{name}:{state}"] = value
    return found


def _move(rank: int, world: int, kind: str, warm: int) -> Any:
    theirs, expected, report = None, [None], None
    with swt.join() as session:
        if rank < 2:
            model, optimizer = _trainer(kind, 2, 3)
            expected = [_whole(model, optimizer)]
            theirs = swt.publish(session, model, optimizer, step=3, ranks=2)
        ours = _trainer(kind, world, warm)
        swt.restore_into(session, *ours, timeout=30)
        dist.barrier()
        if theirs is not None:
            theirs.retire(5)
    dist.broadcast_object_list(expected, src=0)
    got = _whole(*ours)
    quantized = sum(type(value.to_local()) is not torch.Tensor for state in ours[1].state.values() for value in state.values()
                    if isinstance(value, DTensor))
    return quantized, sorted(name for name in expected[0].keys() | got.keys() if not torch.equal(expected[0][name], got[name]))


@pytest.mark.parametrize("warm", [0, 1], ids=["cold", "warm"])
@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamWFp8"])
def test_quantized_states_of_two_ranks_go_to_three(pool, kind, warm):
    assert pool(3, _move, kind, warm) == [(2, [])] * 3


def test_states_that_are_quantized_across_rows_are_refused(pool):
    with pytest.raises(AssertionError, match="exp_avg is a DTensor|no array of elements"):
        pool(2, _move, "AdamW4bit", 0)
