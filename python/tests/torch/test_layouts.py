# SPDX-License-Identifier: Apache-2.0
"""Layouts against the shards that torch makes: what comes out whole, and what goes back into shards."""

from __future__ import annotations

import itertools
import re
from typing import Any, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardwire as sw
import shardwire.torch as swt

SHAPES = [(8, 8), (7, 5), (3, 2), (1, 4), (5,), (2, 3, 4), (0, 4), (1,)]


def meshes(world: int) -> Iterator[tuple[str, DeviceMesh]]:
    yield "row", DeviceMesh("cpu", list(range(world)))
    yield "grid", DeviceMesh("cpu", torch.arange(world).reshape(2, world // 2), mesh_dim_names=("a", "b"))


def part(tensor: torch.Tensor, parts: int, index: int) -> torch.Tensor:
    chunks = tensor.chunk(parts)
    return chunks[index] if index < len(chunks) else tensor[:0]


def second_dim_first(whole: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """Rows split over the second dim of the mesh, and then over the first."""
    first, second = mesh.get_coordinate()
    local = part(part(whole, mesh.size(1), second), mesh.size(0), first)
    spec = DTensorSpec(mesh, (Shard(0), Shard(0)), TensorMeta(whole.shape, whole.stride(), whole.dtype),
                       shard_order=(ShardOrderEntry(0, (1, 0)),), use_strided_shard_as_shard_order=False)
    return DTensor(local.contiguous(), spec, requires_grad=False)


def distributed(world: int) -> Iterator[tuple[str, torch.Tensor, DTensor]]:
    """A name, a whole tensor and its shards, as torch makes them."""
    number = itertools.count(1)
    for where, mesh in meshes(world):
        for shape in SHAPES:
            kinds = [Replicate(), *(Shard(dim) for dim in range(len(shape)))]
            for placements in itertools.product(kinds, repeat=mesh.ndim):
                whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
                whole = whole + 1000.0 * next(number)
                yield f"{where} {shape} {placements}", whole, distribute_tensor(whole, mesh, placements)
        if mesh.ndim == 2:
            # One row of the mesh: its ranks know nothing of the other row.
            whole = torch.arange(15.0).reshape(5, 3) - 1000.0 * next(number)
            yield f"row of {where}", whole, distribute_tensor(whole, mesh["b"], [Shard(0)])
            for shape in SHAPES[:2]:
                whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 1000.0 * next(number)
                yield f"{where} {shape} second dim first", whole, second_dim_first(whole, mesh)


    # Ranks that do not ascend: torch itself is consistent only if all have equally many rows.
    whole = torch.arange(32.0).reshape(8, 4)
    yield "backwards", whole, distribute_tensor(whole, DeviceMesh("cpu", list(range(world))[::-1]), [Shard(0)])
    disorder = DeviceMesh("cpu", torch.tensor([[2, 1], [3, 0]]))
    yield "disorder", whole + 50, distribute_tensor(whole + 50, disorder, [Replicate(), Shard(1)])


def dtensors(rank: int, world: int) -> list[str]:
    held, whole, back = sw.Catalog(rank, world), sw.Catalog(rank, world), sw.Catalog(rank, world)
    kept: list[Any] = []
    for name, full, shards in distributed(world):
        layout, local = swt.layout_of(shards), shards.to_local().contiguous()
        held.add(name, "", full.dtype, full.shape, layout, local)
        got, again = torch.full_like(full, -1), torch.full_like(local, -1)
        whole.add(name, "", full.dtype, full.shape, sw.Layout.replicated(), got)
        back.add(name, "", full.dtype, full.shape, layout, again)
        kept.append((name, full, local, got, again))
    with swt.join() as session:
        publication = session.publish(held, name="shards")
        session.restore(whole, name="shards").wait()
        session.gather("whole", b"", 60)
        publication.retire()
        publication = session.publish(whole, name="whole")
        session.restore(back, name="whole").wait()
        session.gather("back", b"", 60)
        publication.retire()
    return [name for name, full, local, got, again in kept if not torch.equal(full, got) or not torch.equal(local, again)]


def lost_parts(rank: int, world: int) -> None:
    lossy = distribute_tensor(torch.arange(4.0), DeviceMesh("cpu", torch.tensor([[3, 1], [0, 2]])), [Shard(0), Shard(0)])
    assert not torch.equal(lossy.full_tensor(), torch.arange(4.0))
    with pytest.raises(sw.Unsupported, match="do not ascend"):
        swt.layout_of(lossy)


def test_a_mesh_on_which_torch_loses_parts_is_refused(pool):
    pool(4, lost_parts)


def test_dtensors(pool):
    assert pool(4, dtensors) == [[]] * 4


class Experts(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(count, width, 3))
        self.down = nn.Parameter(torch.empty(count, 3, width))


class Net(nn.Module):
    """Sizes that neither 2 nor 4 divides, a parameter of one element, an empty one, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 10), nn.Linear(10, 7)
        self.experts = Experts(6, 5)
        self.norm = nn.LayerNorm(7)
        self.scale = nn.Parameter(torch.empty(1))
        self.none = nn.Parameter(torch.empty(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.first(x))) * self.scale


def net(seed: int, transposed: bool = False) -> Net:
    """Each element of each parameter differs from all others."""
    made = Net()
    start = 1.0 + 4096 * seed
    if transposed:
        made.first.weight = nn.Parameter(torch.empty(7, 10).t())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.arange(start, start + parameter.numel()).reshape(parameter.shape))
            start += parameter.numel()
    return made


def grid(*shape: int) -> DeviceMesh:
    names = ("dp", "ep", "tp") if len(shape) == 3 else ("dp", "tp")
    return DeviceMesh("cpu", torch.arange(torch.Size(shape).numel()).reshape(shape), mesh_dim_names=names)


def parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})


def with_experts(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for name, parameter in list(model.experts.named_parameters()):
        setattr(model.experts, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
    return model


def fsdp1(model: nn.Module, original: bool, **options: Any) -> nn.Module:
    return FSDP(model, use_orig_params=original, device_id=torch.device("cpu"), ignored_states=[model.none],
                auto_wrap_policy=lambda module, recurse, **_: recurse or module is model.experts, **options)


def in_group(model: nn.Module, ranks: list[int], original: bool) -> nn.Module | None:
    group = dist.new_group(ranks)
    return fsdp1(model, original, process_group=group) if dist.get_rank() in ranks else None


def on_mesh(model: nn.Module, ranks: Any) -> nn.Module | None:
    mesh = DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=("dp",) if isinstance(ranks[0], int) else ("r", "dp"))
    return fully_shard(model, mesh=mesh) if mesh.get_coordinate() is not None else None


def own_experts(model: Net, world: int) -> nn.Module:
    """Each rank has modules for its own experts, and everything else as all do."""
    rank = dist.get_rank()
    up, down = model.experts.up.detach(), model.experts.down.detach()
    model.experts = nn.ModuleDict()
    for expert in range(rank, 6, world):
        one = Experts(1, 5)
        one.up.data, one.down.data = up[expert:expert + 1].clone(), down[expert:expert + 1].clone()
        model.experts[str(expert)] = one
    return model


WRAPPERS = {
    "plain": lambda model: model,
    "ddp": lambda model: nn.parallel.DistributedDataParallel(model),
    "fsdp2": lambda model: fully_shard(model, mesh=DeviceMesh("cpu", list(range(4)))),
    "fsdp2 by columns": lambda model: fully_shard(model, mesh=DeviceMesh("cpu", list(range(4))), shard_placement_fn=lambda
                                                  parameter: Shard(1) if parameter.shape == (10, 4) else None),
    "fsdp2 on ranks 3, 0, 1": lambda model: on_mesh(model, [3, 0, 1]),
    "hsdp in disorder": lambda model: on_mesh(model, [[2, 1], [3, 0]]),
    "tp 4": lambda model: parallel(model, DeviceMesh("cpu", list(range(4)))),
    "fsdp2 x tp": lambda model: fully_shard(parallel(model, grid(2, 2)["tp"]), mesh=grid(2, 2)["dp"]),
    "fsdp2 x ep": lambda model: fully_shard(with_experts(model, grid(2, 2)["tp"]), mesh=grid(2, 2)["dp"]),
    "fsdp1": lambda model: fsdp1(model, False),
    "fsdp1 original": lambda model: fsdp1(model, True),
    "fsdp1 not sharded": lambda model: fsdp1(model, True, sharding_strategy=ShardingStrategy.NO_SHARD),
    "fsdp1 x tp": lambda model: fsdp1(parallel(model, grid(2, 2)["tp"]), False, device_mesh=grid(2, 2)["dp"]),
    "fsdp1 original x tp": lambda model: fsdp1(parallel(model, grid(2, 2)["tp"]), True, device_mesh=grid(2, 2)["dp"]),
    "fsdp1 on ranks 1, 3": lambda model: in_group(model, [1, 3], False),
    "fsdp1 original on ranks 0, 1, 3": lambda model: in_group(model, [0, 1, 3], True),
    "fsdp2 x ep x tp": lambda model: fully_shard(parallel(with_experts(model, grid(2, 2, 2)["ep"]), grid(2, 2, 2)["tp"]),
                                                 mesh=grid(2, 2, 2)["dp"]),
}


def trained(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer whose state has a known relation to each element of each parameter."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.5, 0.25))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # FSDP1 keeps no state of original parameters that have nothing in the shard.
            if parameter.numel() or not isinstance(model, FSDP) or name.endswith("none"):
                optimizer.state[parameter] = {"step": torch.tensor(7.0), "exp_avg": parameter.detach() * 2,
                                              "exp_avg_sq": parameter.detach() * -0.5}
    return optimizer


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def wrong(model: nn.Module, optimizer: torch.optim.Optimizer, whole: dict[str, torch.Tensor]) -> list[str]:
    found = []
    if isinstance(model, FSDP):
        for parameter in model.parameters():
            # In a flat parameter the padding may be anything.
            state = optimizer.state.get(parameter, {})
            if not state and parameter.numel():
                found.append("a state is missing")
            if state and not getattr(parameter, "_is_flat_param", False):
                if not torch.equal(state["exp_avg"], parameter * 2) or not torch.equal(state["exp_avg_sq"], parameter * -0.5):
                    found.append(f"a state of {tuple(parameter.shape)}")
        # Two times a whole state is the state of twice the model: torch itself puts the shards together.
        for name, factor in [("param", 1.0), ("exp_avg", 0.5), ("exp_avg_sq", -2.0)]:
            if name != "param":
                with torch.no_grad():
                    for parameter in model.parameters():
                        if parameter in optimizer.state:
                            parameter.copy_(optimizer.state[parameter][name])
            with FSDP.summon_full_params(model, writeback=False):
                for fqn, parameter in model.named_parameters():
                    full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                    if not torch.equal(full * factor, whole[fqn.replace("_fsdp_wrapped_module.", "")]):
                        found.append(f"{fqn}:{name}")
    else:
        for fqn, parameter in model.named_parameters():
            fqn = fqn.removeprefix("module.")
            full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            if not torch.equal(full, whole[fqn]):
                found.append(f"{fqn}:param")
            state, local = optimizer.state[parameter], local_of(parameter)
            if not torch.equal(local_of(state["exp_avg"]), local * 2) or not torch.equal(local_of(state["exp_avg_sq"]), local * -0.5):
                found.append(f"{fqn}:state")
    found += [f"step {state['step']}" for state in optimizer.state.values() if not torch.equal(state["step"], torch.tensor(7.0))]
    group = optimizer.param_groups[0]
    return found + ([] if (group["lr"], group["betas"]) == (0.5, (0.5, 0.25)) else ["options"])


def convert(rank: int, world: int, source: str, target: str, transposed: bool = False) -> list[str]:
    whole = {name: parameter.detach().clone() for name, parameter in net(1).named_parameters()}
    before, after = WRAPPERS[source](net(1, transposed)), WRAPPERS[target](net(2))
    with swt.join() as session:
        publication = None
        if before is not None:
            # The other ranks publish nothing.
            members = [int(number) for number in re.findall(r"\d", source.partition(" on ranks ")[2])] or None
            publication = swt.publish(session, before, trained(before), step=1, ranks=members)
        found = []
        if after is not None:
            optimizer = torch.optim.Adam(after.parameters())
            swt.restore_into(session, after, optimizer, verify="digest")
        session.gather("restored", b"", 60)
        if publication is not None:
            publication.retire()
        if after is not None:
            found = wrong(after, optimizer, whole)
    return found


CASES = [
    ("fsdp2", "plain"), ("plain", "fsdp2"), ("fsdp2 by columns", "fsdp2 x tp"), ("fsdp2 x tp", "fsdp2 by columns"),
    ("fsdp2 on ranks 3, 0, 1", "hsdp in disorder"), ("hsdp in disorder", "fsdp2 on ranks 3, 0, 1"), ("tp 4", "fsdp2 x ep"),
    ("fsdp2 x ep", "fsdp2 x tp"), ("ddp", "fsdp2 x ep"),
    ("fsdp1 x tp", "fsdp2"), ("fsdp2 x tp", "fsdp1 x tp"), ("fsdp1 original x tp", "fsdp1 x tp"), ("fsdp2", "fsdp1 original x tp"),
    ("fsdp1 x tp", "fsdp1 original"), ("fsdp1 on ranks 1, 3", "fsdp1"), ("fsdp1 original", "fsdp1 on ranks 1, 3"),
    ("fsdp1 original on ranks 0, 1, 3", "fsdp2 on ranks 3, 0, 1"), ("fsdp2 x tp", "fsdp1 original on ranks 0, 1, 3"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source, target", CASES)
def test_a_wrapper(pool, source, target):
    assert pool(4, convert, source, target) == [[]] * 4


@pytest.mark.parametrize("source", ["fsdp1", "fsdp1 original", "fsdp1 not sharded"])
def test_fsdp1_flattens_in_the_order_of_memory(pool, source):
    assert pool(4, convert, source, "fsdp2", True) == [[]] * 4


@pytest.mark.parametrize("source, target", [("fsdp2 x ep x tp", "plain"), ("plain", "fsdp2 x ep x tp")])
def test_three_dims(pool, source, target):
    assert pool(8, convert, source, target, seconds=60) == [[]] * 8


def states_that_differ(rank: int, world: int, state: str) -> None:
    """Members of a flat parameter share one step, and one of what is no tensor."""
    before, after = net(1), WRAPPERS["fsdp1"](net(2))
    optimizer, other = trained(before), torch.optim.Adam(after.parameters())
    for kept in optimizer.state.values():
        kept["count"] = 7.0
    optimizer.state[before.norm.bias][state] += 1
    before_it = [parameter.detach().clone() for parameter in after.parameters()]
    with swt.join() as session:
        publication = swt.publish(session, before, optimizer, step=1)
        with pytest.raises(sw.LayoutMismatch, match=rf"are in one flat parameter, .* in {state}: (8.0 and 7.0|7.0 and 8.0)"):
            swt.restore_into(session, after, other)
        session.gather("refused", b"", 60)
        publication.retire()
    assert all(map(torch.equal, before_it, after.parameters())) and not other.state


@pytest.mark.parametrize("state", ["step", "count"])
def test_states_that_differ_are_not_merged(pool, state):
    pool(4, states_that_differ, state)


def experts(rank: int, world: int) -> list[str]:
    """Each rank has other experts, and gets those of its neighbour."""
    model = own_experts(net(1), world)
    optimizer = trained(model)
    with swt.join() as session:
        publication = swt.publish(session, model, optimizer, step=1)
        other = own_experts(net(2), world)
        experts = nn.ModuleDict()
        for expert in range((rank + 1) % world, 6, world):
            experts[str(expert)] = Experts(1, 5)
        other.experts = experts
        after = torch.optim.Adam(other.parameters())
        swt.restore_into(session, other, after)
        session.gather("restored", b"", 60)
        publication.retire()
    whole = dict(net(1).named_parameters())
    expected = {name: parameter for name, parameter in whole.items() if not name.startswith("experts")}
    for name in experts:
        for kind in ("up", "down"):
            expected[f"experts.{name}.{kind}"] = whole[f"experts.{kind}"][int(name):int(name) + 1]
    return wrong(other, after, expected)


def test_experts_of_single_ranks(pool):
    assert pool(4, experts) == [[]] * 4


