# SPDX-License-Identifier: Apache-2.0
"""Small trainers in every kind of wrapper, and their full state as torch itself gathers it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor import Replicate

WORDS, BATCH = 16, 12


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """With a parameter of one element, a buffer that counts, and on demand tied, frozen and unused parameters."""

    def __init__(self, rows: int = WORDS, width: int = 8, tied: bool = False, frozen: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, rows, bias=not tied)
        self.scale = nn.Parameter(torch.rand(1) + 0.5)
        self.register_buffer("seen", torch.zeros(()))
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.blocks[0].up.requires_grad_(False)
        if unused:
            self.spare = nn.Linear(width, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.seen += 1
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) * self.scale


class WideMoments(torch.optim.Optimizer):
    """Momentum that is float32 whatever the parameters are."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["momentum"] = torch.zeros_like(p, dtype=torch.float32)
                state["step"] += 1
                state["momentum"].mul_(group["betas"][0]).add_(p.grad.float())
                p.add_(state["momentum"].to(p.dtype), alpha=-group["lr"])


OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], list[torch.optim.Optimizer]]] = {
    "adamw": lambda params: [torch.optim.AdamW([{"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
                                               {"params": [p for p in params if p.dim() == 2]}], lr=1e-3)],
    "one_group": lambda params: [torch.optim.AdamW(params, lr=1e-3)],
    "capturable": lambda params: [torch.optim.AdamW(params, lr=1e-3, capturable=True)],
    "wide": lambda params: [WideMoments(params)],
    "two": lambda params: [torch.optim.AdamW(params[::2], lr=1e-3), torch.optim.SGD(params[1::2], lr=0.01, momentum=0.9)],
    "muon": lambda params: [torch.optim.Muon([p for p in params if p.dim() == 2], lr=1e-3),
                            torch.optim.AdamW([p for p in params if p.dim() != 2], lr=1e-3)],
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """How to build a trainer; `mesh` is its shape over the first ranks of the world, or over `ranks`."""

    wrapper: str
    mesh: tuple[int, ...] = (1,)
    optimizer: str = "adamw"
    net: tuple[tuple[str, Any], ...] = ()
    dtype: torch.dtype = torch.float32
    orig: bool = True
    strategy: str = "FULL_SHARD"
    ranks: tuple[int, ...] | None = None

    @property
    def members(self) -> list[int]:
        size = 1
        for extent in self.mesh:
            size *= extent
        return list(self.ranks or range(size))


@functools.cache
def _mesh(members: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    return DeviceMesh("cpu", torch.tensor(members).reshape(shape), mesh_dim_names=names)


def mesh_of(spec: Spec) -> DeviceMesh:
    """The same for equal specs, as is the group: a case after the other would leave them behind."""
    two = {"fsdp2": ("dp", "tp"), "hsdp": ("replicate", "shard"), "fsdp1": ("replicate", "shard")}
    one = "tp" if spec.wrapper == "tp" else "dp"
    return _mesh(tuple(spec.members), spec.mesh, (one,) if len(spec.mesh) == 1 else two[spec.wrapper])


@functools.cache
def _group(members: tuple[int, ...]) -> Any:
    return dist.new_group(list(members))


def group_of(spec: Spec) -> Any:
    return _group(tuple(spec.members))


class Trainer:
    """Built on all ranks of the world, because process groups are; `here` tells whether this rank takes part."""

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec = spec
        self.here = dist.get_rank() in spec.members
        self.mesh = mesh_of(spec)
        self.group = group_of(spec)
        self.data_group, self.data_rank, self.data_size = self.group, 0, len(spec.members)
        if not self.here:
            return
        self.data_rank = dist.get_group_rank(self.group, dist.get_rank())
        torch.manual_seed(seed)
        self.model: nn.Module = Net(**dict(spec.net)).to(spec.dtype)
        getattr(self, "_" + spec.wrapper)()
        self.optimizers = self.optimizers if hasattr(self, "optimizers") else self._optimizers(list(self.model.parameters()))
        self.forward = getattr(self, "forward", self.model)

    def _optimizers(self, params: list[Any]) -> list[torch.optim.Optimizer]:
        return OPTIMIZERS[self.spec.optimizer]([p for p in params if p.requires_grad])

    def _plain(self) -> None:
        pass

    def _compiled(self) -> None:
        self.forward = self.model  # a call of the wrapper would really compile
        self.model = torch.compile(self.model)  # type: ignore[assignment]
        assert all(name.startswith("_orig_mod.") for name, _ in self.model.named_parameters())

    def _ddp(self) -> None:
        self.model = nn.parallel.DistributedDataParallel(self.model, process_group=self.group,
                                                         find_unused_parameters="unused" in dict(self.spec.net))

    def _zero(self) -> None:
        self._ddp()
        params = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizers = [ZeroRedundancyOptimizer(params, torch.optim.AdamW, process_group=self.group, lr=1e-3)]

    def _tensor_parallel(self, mesh: DeviceMesh) -> None:
        plan: dict[str, Any] = {"head": ColwiseParallel(output_layouts=Replicate())}
        for i in range(2):
            plan.update({f"blocks.{i}.up": ColwiseParallel(), f"blocks.{i}.down": RowwiseParallel()})
        parallelize_module(self.model, mesh, plan)

    def _tp(self) -> None:
        self._tensor_parallel(self.mesh)
        self.data_size, self.data_rank = 1, 0

    def _fsdp2(self) -> None:
        mesh = self.mesh
        if mesh.ndim == 2:
            self._tensor_parallel(mesh["tp"])
            mesh = mesh["dp"]
            self.data_rank, self.data_size = mesh.get_local_rank(), mesh.size()
        self._shard(mesh)

    def _hsdp(self) -> None:
        self._shard(self.mesh)

    def _shard(self, mesh: DeviceMesh) -> None:
        for block in self.model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def _fsdp1(self) -> None:
        two = {"device_mesh": self.mesh} if self.mesh.ndim == 2 else {"process_group": self.group}
        self.model = FSDP(self.model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=self.spec.orig,
                          sharding_strategy=ShardingStrategy[self.spec.strategy], device_id=torch.device("cpu"), **two)

    def _stages(self) -> None:
        model, first = self.model, self.data_rank == 0
        self.data_rank, self.data_size = 0, 1
        model.blocks = nn.ModuleDict({"0": model.blocks[0]} if first else {"1": model.blocks[1]})  # type: ignore[index]
        for name in ("norm", "head", "scale", "seen") if first else ("embed",):
            delattr(model, name)

    def _train_stages(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        model: Any = self.model
        first, last = self.spec.members
        x = torch.empty(*words.shape, model.blocks[next(iter(model.blocks))].norm.weight.numel())
        if dist.get_rank() == first:
            out = model.blocks["0"](model.embed(words))
            dist.send(out.detach(), last)
            dist.recv(x, last)
            out.backward(x)
            loss = torch.zeros(())
        else:
            dist.recv(x, first)
            x.requires_grad_(True)
            model.seen += 1
            out = model.head(model.norm(model.blocks["1"](x))) * model.scale
            loss = F.cross_entropy(out.flatten(0, 1), labels)
            loss.backward()
            dist.send(x.grad, first)
        total = loss.detach()
        dist.all_reduce(total, group=self.group)
        return total

    def train(self, step: int) -> float:
        """One step; the loss of the whole batch."""
        generator = torch.Generator().manual_seed(1000 + step)
        words = torch.randint(WORDS, (BATCH, 4), generator=generator)
        rows = dict(self.spec.net).get("rows", WORDS)
        part = BATCH // self.data_size
        mine = words[part * self.data_rank:part * (self.data_rank + 1)]
        labels = (mine.flatten() * 5 + 3) % rows
        if self.spec.wrapper == "stages":
            loss = self._train_stages(mine, labels)
        else:
            loss = F.cross_entropy(self.forward(mine).flatten(0, 1).float(), labels)
            loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        total = loss.detach().clone()
        if self.spec.wrapper == "stages":
            return float(total)
        if len(self.spec.members) > 1:
            dist.all_reduce(total, group=self.group)
            total /= len(self.spec.members)
        return float(total)

    def reference(self) -> dict[str, Any]:
        """The whole state by name, gathered by torch."""
        if self.spec.wrapper == "zero":
            return self._zero_reference()
        if self.spec.wrapper == "stages":
            parts: list[Any] = [None] * len(self.spec.members)
            dist.all_gather_object(parts, self._gathered(), group=self.group)
            return {name: value for part in parts for name, value in part.items()}
        return self._gathered()

    def _gathered(self) -> dict[str, Any]:
        # Without it, torch 2.11 gathers over all ranks of the job, some of which do not take part.
        with mock.patch.object(FSDP, "optim_state_dict", functools.partial(FSDP.optim_state_dict, group=self.group)):
            model, optim = get_state_dict(self.model, self.optimizers, options=StateDictOptions(full_state_dict=True))
        out: dict[str, Any] = {f"model {name}": value.clone() for name, value in model.items()}
        for fqn, state in optim["state"].items():
            out.update({f"state {fqn} {name}": value.clone() if isinstance(value, torch.Tensor) else value
                        for name, value in state.items()})
        for group in optim["param_groups"]:
            for fqn in group["params"]:
                out.update({f"option {fqn} {name}": value for name, value in group.items() if name not in ("params", "param_names")})
        return {name.replace("_orig_mod.", ""): value for name, value in out.items()}

    def _zero_reference(self) -> dict[str, Any]:
        names = [name.removeprefix("module.") for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        out = {f"model {name.removeprefix('module.')}": value.clone() for name, value in self.model.state_dict().items()}
        zero: Any = self.optimizers[0]
        whole: dict[str, Any] = {}
        for rank in range(dist.get_world_size(self.group)):
            zero.consolidate_state_dict(to=rank)
            if rank == dist.get_rank(self.group):
                whole = zero.state_dict()
        for number, state in whole["state"].items():
            out.update({f"state {names[number]} {key}": value for key, value in state.items()})
        for group in whole["param_groups"]:
            for number in group["params"]:
                out.update({f"option {names[number]} {key}": value for key, value in group.items() if key not in ("params",)})
        return out


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
    return type(a) is type(b) and bool(a == b)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Names whose values differ, or that one side lacks."""
    return [name for name in sorted(expected.keys() | found.keys())
            if name not in expected or name not in found or not same(expected[name], found[name])]
