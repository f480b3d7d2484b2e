# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a case do."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from trainers import Spec, Trainer, differences

import shardwire.torch as swt

STEPS, MORE = 3, 5


def shared(thing: Any, source: int) -> Any:
    """What the source rank has."""
    box = [thing]
    dist.broadcast_object_list(box, src=source)
    return box[0]


def built(spec: Spec, seed: int, steps: int) -> Trainer:
    trainer = Trainer(spec, seed)
    if trainer.here:
        for step in range(steps):
            trainer.train(step)
    return trainer


def continued(source: Trainer, target: Trainer) -> float:
    """The largest relative difference of losses from here on."""
    rows = []
    for step in range(STEPS, STEPS + MORE):
        rows.append((source.train(step) if source.here else 0.0, target.train(step) if target.here else 0.0))
    theirs = shared([row[0] for row in rows], source.spec.members[0])
    if not target.here:
        return 0.0
    return max(abs(own - other) / abs(other) for (_, own), other in zip(rows, theirs))


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def flip(trainer: Trainer) -> None:
    """Changes the lowest bit of an element of the optimizer's state."""
    states = [local(state["exp_avg_sq"]) for state in trainer.optimizers[0].state.values()]
    bits = next(state for state in reversed(states) if state.numel()).view(torch.uint8)
    bits.view(-1)[0] ^= 1


def move(rank: int, world: int, source_spec: Spec, target_spec: Spec, warm: bool = False, plant: bool = False,
         absent: Any = None) -> dict[str, Any]:
    """Trains a source, restores a target from it, and trains both on.

    `warm`: the target has trained before. `plant`: one bit of the target goes wrong.
    """
    source = built(source_spec, 1, STEPS)
    target = built(target_spec, 2, 2 if warm else 0)
    count = len(source_spec.members)
    with swt.join() as session:
        publication = None
        if source.here:
            publication = swt.publish(session, source.model, source.optimizers, step=STEPS, ranks=count)
        seconds, report = 0.0, None
        if target.here:
            start = time.monotonic()
            report = swt.restore_into(session, target.model, target.optimizers, timeout=20, absent=absent)
            seconds = time.monotonic() - start
        if plant and dist.get_rank() == target_spec.members[-1]:
            flip(target)
        dist.barrier()
        if publication is not None:
            publication.retire(5)
        dist.barrier()
    expected = shared(source.reference() if source.here else None, source_spec.members[0])
    wrong = differences(expected, target.reference()) if target.here else []
    return {"wrong": wrong, "names": len(expected), "step": report.step if report else STEPS, "seconds": seconds,
            "loss": continued(source, target)}


def local_bytes(trainer: Trainer) -> dict[str, list[int]]:
    """What this rank has in memory."""
    tensors: dict[str, torch.Tensor] = {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}
    for number, optimizer in enumerate(trainer.optimizers):
        for place, state in enumerate(optimizer.state.values()):
            tensors.update({f"{number} {place} {name}": value for name, value in state.items() if isinstance(value, torch.Tensor)})
    return {name: local(tensor).contiguous().view(-1).view(torch.uint8).tolist() for name, tensor in tensors.items()}


def ordered(source: Spec, target: Spec, warm: bool = False, plant: bool = False, absent: Any = None) -> tuple[Any, ...]:
    """Arguments of move() after the ranks."""
    return source, target, warm, plant, absent


def replace_alone(rank: int, world: int, spec: Spec) -> dict[str, Any]:
    """The last rank loses its state; it restores alone from the others, who load nothing. A twin loses nothing."""
    trainer, twin = built(spec, 1, STEPS), built(spec, 1, STEPS)
    lost = rank == world - 1
    before = local_bytes(trainer)
    if lost:
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                local(parameter).fill_(7)
            trainer.model.get_buffer("seen").fill_(7)
        for optimizer in trainer.optimizers:
            optimizer.state.clear()
    damaged = local_bytes(trainer) != before
    seconds = 0.0
    with swt.join() as session:
        publication = None
        if not lost:
            publication = swt.publish(session, trainer.model, trainer.optimizers, step=STEPS)
        dist.barrier()
        if lost:
            start = time.monotonic()
            swt.restore_into(session, trainer.model, trainer.optimizers, step=STEPS, timeout=20)
            seconds = time.monotonic() - start
        dist.barrier()
        if publication is not None:
            publication.retire(5)
        dist.barrier()
    return {"damaged": damaged, "same": local_bytes(trainer) == before, "wrong": differences(twin.reference(), trainer.reference()),
            "seconds": seconds, "loss": continued(twin, trainer)}


class Scheduled:
    """What a trainer keeps beside model and optimizer."""

    def __init__(self, trainer: Trainer, seed: int, steps: int) -> None:
        self.schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5 / seed) for optimizer in trainer.optimizers]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=float(2 ** (8 + seed)))
        self.random = torch.Generator().manual_seed(seed * 100 + dist.get_rank())
        for _ in range(steps):
            for scheduler in self.schedulers:
                scheduler.step()
            torch.rand(3, generator=self.random)

    def extra(self) -> dict[str, Any]:
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers], "scaler": self.scaler.state_dict(),
                "random": swt.PerRank(self.random.get_state())}

    def load(self, extra: dict[str, Any]) -> None:
        for scheduler, state in zip(self.schedulers, extra["schedulers"]):
            scheduler.load_state_dict(state)
        self.scaler.load_state_dict(extra["scaler"])
        self.random.set_state(extra["random"])

    def state(self) -> list[Any]:
        return [[scheduler.state_dict() for scheduler in self.schedulers], self.scaler.state_dict(), self.random.get_state().tolist()]


def extras(rank: int, world: int, spec: Spec) -> dict[str, Any]:
    """Schedulers, a grad scaler and a random generator of each rank come with the model."""
    source, target = built(spec, 1, STEPS), built(spec, 2, 0)
    theirs, ours = Scheduled(source, 1, 5), Scheduled(target, 2, 0)
    differed = [own != other for own, other in zip(theirs.state(), ours.state())]
    with swt.join() as session:
        publication = swt.publish(session, source.model, source.optimizers, step=STEPS, extra=theirs.extra())
        ours.load(swt.restore_into(session, target.model, target.optimizers, timeout=20).extra)
        dist.barrier()
        publication.retire(5)
        dist.barrier()
    rates = [[group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups] for trainer in (source, target)]
    return {"differed": differed, "theirs": theirs.state(), "ours": ours.state(), "rates": rates}
