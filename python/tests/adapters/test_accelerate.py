# SPDX-License-Identifier: Apache-2.0
"""The functions of docs/accelerate.md with a real Accelerator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import shardwire as sw
import shardwire.torch as swt
from recipes import code_of


class Net(nn.Module):
    def __init__(self, width: int = 11) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Trainer:
    """Under Accelerate, or under FSDP2 without it."""

    def __init__(self, accelerator: Any, world: int, width: int = 11) -> None:
        self.accelerator = accelerator
        self.model: Any = Net(width)
        if accelerator is None:
            fully_shard(self.model, mesh=init_device_mesh("cpu", (world,)))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler: Any = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        if accelerator is not None:
            self.model, self.optimizer, self.scheduler = accelerator.prepare(self.model, self.optimizer, self.scheduler)

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = self.model(torch.linspace(-1, 1, 24).reshape(4, 6)).square().mean()
            if self.accelerator is None:
                loss.backward()
            else:
                self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def state(self) -> list[torch.Tensor]:
        tensors = [tensor for parameter in self.model.parameters()
                   for tensor in (parameter.detach(), *self.optimizer.state[parameter].values())]
        return [(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone() for tensor in tensors]


def made_accelerator() -> Any:
    AcceleratorState._reset_state()  # one per process
    return Accelerator(cpu=True, step_scheduler_with_optimizer=False)


def go_on_elsewhere(rank: int, world: int, sharded: bool) -> None:
    recipe = code_of("accelerate.md")
    torch.manual_seed(0)
    accelerator = made_accelerator()
    with swt.join() as session:
        source = Trainer(accelerator, world)
        source.train(5)
        before = source.state()
        with recipe["publish"](session, accelerator, source.model, source.optimizer, source.scheduler, 5):
            losses = source.train(12)
            target = Trainer(None if sharded else accelerator, world)
            assert recipe["restore"](session, accelerator, target.model, target.optimizer, target.scheduler) == 5
            assert all(map(torch.equal, before, target.state())) and len(before) == 16
            assert target.optimizer.param_groups[0]["lr"] == 1e-2 / 4
            assert target.train(12) == (pytest.approx(losses, rel=1e-6, abs=0) if sharded else losses)
            assert target.optimizer.param_groups[0]["lr"] == source.optimizer.param_groups[0]["lr"]
            session.gather("done", b"", timeout=60)


@pytest.mark.parametrize("sharded", [False, True], ids=["data-parallel", "into-fsdp2"])
def test_training_goes_on(pool, sharded):
    pool(2, go_on_elsewhere, sharded)


def of_another_model(rank: int, world: int) -> None:
    recipe, accelerator = code_of("accelerate.md"), made_accelerator()
    with swt.join() as session:
        source, target = Trainer(accelerator, world), Trainer(accelerator, world, 12)
        source.train(1)
        with recipe["publish"](session, accelerator, source.model, source.optimizer, source.scheduler, 1):
            before = [parameter.detach().clone() for parameter in target.model.parameters()]
            with pytest.raises(sw.LayoutMismatch, match="up.weight:param: source has f32"):
                recipe["restore"](session, accelerator, target.model, target.optimizer, target.scheduler)
            assert all(map(torch.equal, before, target.model.parameters())) and not target.optimizer.state
            session.gather("done", b"", timeout=60)


def test_another_model_is_refused(pool):
    pool(2, of_another_model)
