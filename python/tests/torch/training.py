# SPDX-License-Identifier: Apache-2.0
"""A small transformer under all wrappers, and its full state gathered without the package under test."""

from __future__ import annotations

import logging
import warnings
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, ShardingStrategy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

warnings.filterwarnings("ignore")
logging.getLogger("torch.distributed").setLevel(logging.ERROR)

WIDTH, HIDDEN, WORDS = 14, 28, 11  # 14 rows over 2 x 2 ranks, 11 over 3 or 4: uneven


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores = self.query(y) @ self.key(y).transpose(-1, -2) / WIDTH**0.5
        x = x + self.out(scores.softmax(-1) @ self.value(y))
        return x + self.down(torch.relu(self.up(x))) * self.scale


class Transformer(nn.Module):
    def __init__(self, blocks: int = 2, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.unused = nn.Parameter(torch.randn(5, 3))
        self.frozen = nn.Parameter(torch.randn(3, 2), requires_grad=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model(seed: int, **options: Any) -> Transformer:
    torch.manual_seed(seed)
    made = Transformer(**options)
    for block in made.blocks:
        block.seen += seed
    return made


def _shard(module: nn.Module, **options: Any) -> nn.Module:
    # Parameters of no block belong to the root.
    ignored = {parameter for parameter in module.parameters() if not parameter.requires_grad}
    for block in module.blocks:
        fully_shard(block, **options)
    return fully_shard(module, ignored_params=ignored, **options)


def _mesh(ranks: Any, names: tuple[str, ...]) -> DeviceMesh:
    return DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=names)


def _grid(world: int, inner: int) -> DeviceMesh:
    return _mesh(torch.arange(world).reshape(world // inner, inner).tolist(), ("outer", "inner"))


def _parallel(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in module.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return module


def _fsdp2(module: nn.Module, world: int) -> nn.Module:
    return _shard(module, mesh=_mesh(list(range(world)), ("shard",)))


def _first(count: int) -> Callable[[nn.Module, int], nn.Module | None]:
    def wrap(module: nn.Module, world: int) -> nn.Module | None:
        mesh = _mesh(list(range(count)), ("shard",))
        return _shard(module, mesh=mesh) if dist.get_rank() < count else None

    return wrap


def _two_ways(module: nn.Module, world: int) -> nn.Module:
    mesh = _grid(world, 2)
    return _shard(_parallel(module, mesh["inner"]), mesh=mesh["outer"])


def _fsdp1(strategy: ShardingStrategy, original: bool) -> Callable[[nn.Module, int], nn.Module]:
    def wrap(module: nn.Module, world: int) -> nn.Module:
        options: dict[str, Any] = {}
        if strategy == ShardingStrategy.HYBRID_SHARD:
            options["device_mesh"] = _grid(world, 2)
        options["ignored_states"] = [module.frozen]
        return FSDP(module, sharding_strategy=strategy, use_orig_params=original, device_id=torch.device("cpu"),
                    auto_wrap_policy=lambda module, recurse, **_: recurse or isinstance(module, Block), **options)

    return wrap


WRAPPERS: dict[str, Callable[[nn.Module, int], nn.Module | None]] = {
    "plain": lambda module, world: module,
    "compiled": lambda module, world: _optimized(module),
    "ddp": lambda module, world: nn.parallel.DistributedDataParallel(module, find_unused_parameters=True),
    "fsdp2": _fsdp2,
    "fsdp2 over 3": _first(3),
    "fsdp2 over 4": _first(4),
    "hsdp": lambda module, world: _shard(module, mesh=_grid(world, 2)),
    "tp": lambda module, world: _parallel(module, _mesh(list(range(world)), ("tp",))),
    "fsdp2 x tp 2": _two_ways,
    "fsdp1": _fsdp1(ShardingStrategy.FULL_SHARD, False),
    "fsdp1 original": _fsdp1(ShardingStrategy.FULL_SHARD, True),
    "fsdp1 grad_op": _fsdp1(ShardingStrategy.SHARD_GRAD_OP, False),
    "fsdp1 grad_op original": _fsdp1(ShardingStrategy.SHARD_GRAD_OP, True),
    "fsdp1 no_shard": _fsdp1(ShardingStrategy.NO_SHARD, False),
    "fsdp1 no_shard original": _fsdp1(ShardingStrategy.NO_SHARD, True),
    "fsdp1 hybrid": _fsdp1(ShardingStrategy.HYBRID_SHARD, False),
    "fsdp1 hybrid original": _fsdp1(ShardingStrategy.HYBRID_SHARD, True),
}


def _optimized(module: nn.Module) -> nn.Module:
    from torch._dynamo.eval_frame import OptimizedModule

    return OptimizedModule(module, lambda call: call)


def trained(wrapped: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in wrapped.parameters() if parameter.requires_grad]


def _groups(wrapped: nn.Module) -> list[dict[str, Any]]:
    """Two groups by name; one where parameters are flattened, which mixes them."""
    if isinstance(wrapped, FSDP):
        return [{"params": trained(wrapped), "weight_decay": 0.1}]
    named = [(name, parameter) for name, parameter in wrapped.named_parameters() if parameter.requires_grad]
    decayed = [parameter for name, parameter in named if name.endswith("weight") and "norm" not in name]
    others = [parameter for name, parameter in named if not (name.endswith("weight") and "norm" not in name)]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 2e-3}]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw": lambda wrapped: torch.optim.AdamW(_groups(wrapped), lr=1e-3),
    "adam amsgrad": lambda wrapped: torch.optim.Adam(_groups(wrapped), lr=1e-3, amsgrad=True),
    "adamw fused": lambda wrapped: torch.optim.AdamW(_groups(wrapped), lr=1e-3, fused=True),
    "sgd": lambda wrapped: torch.optim.SGD(_groups(wrapped), lr=1e-2, momentum=0.9),
    "adagrad": lambda wrapped: torch.optim.Adagrad(_groups(wrapped), lr=1e-2),
    "adafactor": lambda wrapped: torch.optim.Adafactor(_groups(wrapped), lr=1e-2),
    "rmsprop": lambda wrapped: torch.optim.RMSprop(_groups(wrapped), lr=1e-3, centered=True),
    "one group": lambda wrapped: torch.optim.AdamW(trained(wrapped), lr=1e-3, weight_decay=0.1),
    "zero": lambda wrapped: ZeroRedundancyOptimizer(trained(wrapped), torch.optim.AdamW, lr=1e-3, weight_decay=0.1),
}


def build(wrapper: str, optimizer: str, seed: int, world: int, dtype: torch.dtype = torch.float32,
          **options: Any) -> tuple[nn.Module | None, torch.optim.Optimizer | None]:
    wrapped = WRAPPERS[wrapper](model(seed, **options).to(dtype), world)
    if wrapped is None:
        return None, None
    return wrapped, OPTIMIZERS[optimizer](wrapped)


def train(wrapped: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> list[float]:
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * seed + step)
        words = torch.randint(WORDS, (4, 6), generator=generator)
        logits = wrapped(words)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), words.roll(1, -1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _name(name: str) -> str:
    for part in ("_fsdp_wrapped_module.", "_orig_mod."):
        name = name.replace(part, "")
    return name.removeprefix("module.")


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def _options(optimizer: torch.optim.Optimizer, names: dict[Any, list[str]], out: dict[str, Any]) -> None:
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        for parameter in group["params"]:
            for name in names[parameter]:
                out[name + ":options"] = options


def _gathered(own: Any) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def _fsdp1_reference(wrapped: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Shards put together by the positions that FSDP1 keeps. Its own gather of states mixes them up on CPUs."""
    out: dict[str, Any] = {}
    with FSDP.summon_full_params(wrapped, writeback=False):
        out.update((_name(name) + ":param", parameter.detach().clone()) for name, parameter in wrapped.named_parameters())
    out.update((_name(name) + ":buffer", buffer.clone()) for name, buffer in wrapped.named_buffers())
    prefixes = {module: _name(name + ".") if name else "" for name, module in wrapped.named_modules()}
    for unit in FSDP.fsdp_modules(wrapped):
        handle = unit._handle
        flat = handle.flat_param
        names = [prefixes[info.module].removeprefix(".") + info.param_name for info in flat._param_infos]
        names = [_name(name) for name in names]
        states, options = {}, {}
        for index, name in enumerate(names):
            key = flat._params[index] if flat._params is not None else flat
            _options(optimizer, {key: [name], **{p: [] for g in optimizer.param_groups for p in g["params"] if p is not key}}, options)
            for state, value in optimizer.state.get(key, {}).items():
                if value.dim() == 0:
                    states[name, state] = (None, value.clone())
                elif flat._params is not None:
                    info = flat._shard_param_infos[index]
                    start = info.intra_param_start_idx if info.in_shard else 0
                    states[name, state] = (start or 0, value.flatten().clone())
                else:
                    # Positions in the flat parameter, and of this rank's shard in it.
                    begin = sum(flat._numels[:index]) - (handle.rank * value.numel() if handle.uses_sharded_strategy else 0)
                    lower, upper = max(begin, 0), min(begin + flat._numels[index], value.numel())
                    if lower < upper:
                        states[name, state] = (lower - begin, value[lower:upper].clone())
        shapes = dict(zip(names, flat._shapes))
        for one in _gathered(states):
            for (name, state), (start, value) in one.items():
                if start is None:
                    out[f"{name}:{state}"] = value
                else:
                    whole = out.setdefault(f"{name}:{state}", torch.full(shapes[name], float("nan")))
                    whole.view(-1)[start:start + value.numel()] = value
        for one in _gathered(options):
            out.update(one)
    return out


def reference(wrapped: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Every parameter, buffer, state and option of the whole job by name. All ranks of the model call it."""
    if isinstance(wrapped, FSDP):
        return _fsdp1_reference(wrapped, optimizer)
    for module in wrapped.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    out: dict[str, Any] = {}
    names: dict[Any, list[str]] = {}
    for name, parameter in wrapped.named_parameters():
        names.setdefault(parameter, []).append(_name(name))
        out[_name(name) + ":param"] = full(parameter)
    out.update((_name(name) + ":buffer", buffer.clone()) for name, buffer in wrapped.named_buffers())
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    _options(inner, names, out)
    for parameter, states in inner.state.items():
        for state, value in states.items():
            for name in names[parameter]:
                out[f"{name}:{state}"] = full(value) if isinstance(value, torch.Tensor) else value
    if inner is not optimizer:
        for one in _gathered(out):
            out.update(one)
    return out


def differences(source: dict[str, Any], target: dict[str, Any]) -> list[str]:
    """Names that one side lacks, and of things that are not bit for bit the same."""
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(
                a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
        return type(a) is type(b) and a == b

    def no_state(name: str) -> bool:
        """A parameter that was never used has no state, or zeros where it is flattened with others."""
        return name.startswith("unused:") and name not in source and (name.endswith(":step") or not target[name].any())

    return [name for name in source.keys() | target.keys()
            if name not in target or (name not in source and not no_state(name))
            or name in source and not same(source[name], target[name])]
