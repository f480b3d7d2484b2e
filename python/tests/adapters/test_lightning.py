# SPDX-License-Identifier: Apache-2.0
"""The strategy of docs/lightning.md under real trainers."""

from __future__ import annotations

import os
import warnings
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwire as sw
import shardwire.torch as swt
from recipes import code_of


class Module(lightning.LightningModule):
    def __init__(self, width: int = 14) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(6, width), nn.Linear(width, 3)
        self.losses: list[float] = []

    def configure_model(self) -> None:
        if self.device_mesh["tensor_parallel"].size() > 1:
            parallelize_module(self, self.device_mesh["tensor_parallel"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if self.device_mesh["data_parallel"].size() > 1:
            fully_shard(self, mesh=self.device_mesh["data_parallel"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.linspace(-1, 1, 48).reshape(8, 6), batch_size=2)


def trainer_of(rank: int, world: int, session: sw.Session, layout: tuple[int, int], epochs: int) -> Any:
    warnings.simplefilter("ignore")
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0")
    strategy = code_of("lightning.md")["PeerStrategy"](*layout)
    strategy.session = session
    return lightning.Trainer(accelerator="cpu", devices=world, strategy=strategy, max_epochs=epochs, logger=False,
                             enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                             use_distributed_sampler=False)


def state_of(module: Module) -> dict[str, torch.Tensor]:
    """Parameters and states, whole."""
    optimizer = module.trainer.optimizers[0]
    tensors = {name: parameter.detach() for name, parameter in module.named_parameters()}
    tensors.update((f"{name}.{state}", value) for name, parameter in module.named_parameters()
                   for state, value in optimizer.state[parameter].items())
    return {name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone() for name, tensor in tensors.items()}


def go_on_elsewhere(rank: int, world: int, source: tuple[int, int], target: tuple[int, int]) -> None:
    with swt.join() as session:
        first, second, undisturbed = Module(), Module(), Module()
        trainer = trainer_of(rank, world, session, source, 2)
        trainer.fit(first)
        trainer.save_checkpoint("newest")
        before = state_of(first)
        at_start: dict[str, torch.Tensor] = {}

        class Look(lightning.Callback):
            def on_train_start(self, trainer: Any, module: Any) -> None:
                at_start.update(state_of(module))

        other = trainer_of(rank, world, session, target, 4)
        other.callbacks.append(Look())
        other.fit(second, ckpt_path="newest")
        assert at_start.keys() == before.keys() and all(torch.equal(at_start[name], before[name]) for name in before)
        trainer_of(rank, world, session, source, 4).fit(undisturbed)
        assert undisturbed.losses[:8] == first.losses and len(undisturbed.losses) == 16
        difference = 0.0 if source == target else 1e-6
        assert second.losses == pytest.approx(undisturbed.losses[8:], rel=difference, abs=0)
        assert (other.global_step, other.current_epoch) == (16, 4)
        assert other.optimizers[0].param_groups[0]["lr"] == 1e-2 / 16
        session.gather("done", b"", timeout=60)


@pytest.mark.parametrize("source, target", [((2, 1), (2, 1)), ((2, 1), (1, 2)), ((1, 2), (2, 1))],
                         ids=["same", "fsdp2-to-tp", "tp-to-fsdp2"])
def test_training_goes_on(pool, source, target):
    pool(2, go_on_elsewhere, source, target)


def of_another_model(rank: int, world: int) -> None:
    with swt.join() as session:
        trainer = trainer_of(rank, world, session, (2, 1), 1)
        trainer.fit(Module())
        trainer.save_checkpoint("newest")
        with pytest.raises(sw.LayoutMismatch, match="up.weight:param: source has f32"):
            trainer_of(rank, world, session, (2, 1), 2).fit(Module(16), ckpt_path="newest")
        session.gather("done", b"", timeout=60)


def test_another_model_is_refused(pool):
    pool(2, of_another_model)
