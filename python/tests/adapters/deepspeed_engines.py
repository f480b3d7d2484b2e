# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks with a DeepSpeed engine each, and their full state, gathered by DeepSpeed."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Iterator

import torch
import torch.distributed as dist
from torch import nn

import shardwire.torch as swt

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: E402
from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402

# Otherwise DeepSpeed compiles an extension for collectives between processes of one host, for minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

BATCH = 24


@contextlib.contextmanager
def session_of(folder: str, rank: int, world: int) -> Iterator[Any]:
    """A session that outlives the jobs, which are started one after another on some of its ranks."""
    with swt.join(dist.FileStore(f"{folder}/session", world), rank, world) as session:
        yield session


def start_job(folder: str, job: str, rank: int, ranks: int) -> None:
    if deepspeed.comm.comm.cdb is not None and dist.is_initialized():
        deepspeed.comm.destroy_process_group()
    elif dist.is_initialized():
        dist.destroy_process_group()
    # DeepSpeed numbers parameters and modules, and compares the numbers of the ranks. New processes would start with 0.
    deepspeed.zero.Init.param_id = 0
    DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][0] = 0
    # DeepSpeed looks here, too.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/{job}", ranks), rank=rank, world_size=ranks)


class Model(nn.Module):
    """Sizes that no number of ranks divides, a tied and a frozen parameter, one of one element, and a buffer."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.up = nn.Linear(width, 7)
        self.fixed = nn.Linear(7, 7)
        self.norm = nn.LayerNorm(7)
        self.down = nn.Linear(7, width)
        self.scale = nn.Parameter(torch.full((1,), 1.5))
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight
        self.fixed.requires_grad_(False)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.fixed(torch.tanh(self.up(self.embed(tokens)))))
        logits: torch.Tensor = self.head(self.down(self.norm(hidden)) * self.scale)
        return logits


def make_engine(kind: str, seed: int, *, width: int = 5, dtype: str = "fp32", scheduler: bool = True, groups: int = 2,
                **config: Any) -> Any:
    """`kind`: the ZeRO stage; "a": gradients in fp32, which is another optimizer; "p": small parameters stay whole; "o": offload"""
    torch.manual_seed(seed)
    model = Model(width)
    matrices = [tensor for tensor in model.parameters() if tensor.dim() > 1]
    others = [tensor for tensor in model.parameters() if tensor.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "lr": 0.01 * seed, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]
                                  if groups == 2 else matrices + others)
    zero: dict[str, Any] = {"stage": int(kind[0]), "reduce_bucket_size": 64, "allgather_bucket_size": 64}
    if kind[0] == "3":
        zero.update(stage3_param_persistence_threshold=20 if kind == "3p" else 0, sub_group_size=30)
    if kind.endswith("o"):
        zero["offload_optimizer"] = {"device": "cpu"}
        config["zero_force_ds_cpu_optimizer"] = False
    settings: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True,
                                "zero_optimization": zero, **config}
    if dtype != "fp32":
        settings[dtype] = {"enabled": True, **settings.get(dtype, {})}
    if kind == "1a":
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    steps = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if scheduler else None
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=steps, config=settings)
    return engine


def train(engine: Any, steps: range) -> list[float]:
    """The losses. All numbers of ranks split the same batches."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in steps:
        data = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 11, (2, BATCH), generator=data)[:, rank * BATCH // ranks:(rank + 1) * BATCH // ranks]
        loss = nn.functional.cross_entropy(engine(tokens[0]).float(), tokens[1])
        engine.backward(loss)
        engine.step()
        engine.module.mean.fill_(step)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / ranks)
    return losses


def full_state(engine: Any, link: bool = True) -> dict[str, Any]:
    """Everything that training goes on from, gathered by DeepSpeed's own functions. `link`: lets those find all states."""
    found: dict[str, Any] = {}
    stage0 = engine.zero_optimization_stage() == 0
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    if link and hasattr(engine.optimizer, "_hp_optimizer_states_linked") and inner.state:
        # DeepSpeed links the states when the first group has been updated, and misses those of later groups.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    groups = zip(getattr(engine.optimizer, "fp16_groups", []), getattr(engine.optimizer, "fp32_groups", []))
    copies = {id(low): high for group, other in groups for low, high in zip(group, other)}
    for name, parameter in engine.module.named_parameters():
        whole = deepspeed.zero.GatheredParameters([parameter]) if hasattr(parameter, "ds_id") else contextlib.nullcontext()
        with whole:
            found[name] = parameter.detach().clone()
        if not parameter.requires_grad:
            continue
        key = copies.get(id(parameter), parameter)
        master = key if stage0 else safe_get_full_fp32_param(parameter)
        found[f"{name}:master"] = master.detach().clone().reshape(found[name].shape)
        for state in ("exp_avg", "exp_avg_sq") if inner.state else ():
            value = inner.state[key][state] if stage0 else safe_get_full_optimizer_state(parameter, state)
            found[f"{name}:{state}"] = value.clone().reshape(found[name].shape)
    found["mean"] = engine.module.mean.clone()
    found["steps"] = {state["step"].item() for state in inner.state.values() if "step" in state}
    found["options"] = [{name: value for name, value in group.items() if name != "params"} for group in inner.param_groups]
    found["counters"] = (engine.global_steps, engine.global_samples, engine.micro_steps, engine.skipped_steps)
    if engine.lr_scheduler is not None:
        found["scheduler"] = engine.lr_scheduler.state_dict()
    return found


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    def equal(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return bool(one == other)

    return sorted(name for name in left.keys() | right.keys() if name not in left or name not in right
                  or not equal(left[name], right[name]))
