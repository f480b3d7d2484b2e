# SPDX-License-Identifier: Apache-2.0
"""FSDP1: FullyShardedDataParallel. Parameters are members of flat parameters, each split evenly over a process group."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from .. import FlatMember, Layout, Unsupported
from ._dtensor import layout_of_spec
from ._layouts import Local, Parameter, Ranks, State


def is_flat(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, "_is_flat_param", False))


def shard_of(flat: Any) -> torch.Tensor:
    # Before the first forward the parameter is its own shard.
    shard = getattr(flat, "_local_shard", None)
    tensor: torch.Tensor = flat.data if shard is None else shard
    return tensor.detach()


def _order(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Dims from outermost to innermost in memory; empty for row-major."""
    order = tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim)))
    return () if order == tuple(range(len(shape))) else order


def _layouts(handle: Any, ranks: Ranks) -> list[tuple[tuple[int, ...], Layout]]:
    """Global shape and layout of each member."""
    flat = handle.flat_param
    world, group = _shards(handle)
    numbers = ranks.of(group)
    specs = flat._param_extensions
    if any(spec is not None for spec in specs):
        return _layouts_over_dtensors(handle, world, numbers)
    members = [FlatMember(tuple(shape), order=_order(strides, shape)) for shape, strides in zip(flat._shapes, flat._strides)]
    made = Layout.flat(members, world, handle._aligned_numel)
    return [(tuple(member.shape), Layout.on_ranks(layout, numbers)) for member, layout in zip(members, made)]


def _shards(handle: Any) -> tuple[int, list[int]]:
    """The number of shards, and the ranks that hold them."""
    if not handle.uses_sharded_strategy:
        return 1, [dist.get_rank()]
    return handle.world_size, dist.get_process_group_ranks(handle.process_group)


def _layouts_over_dtensors(handle: Any, world: int, numbers: list[int]) -> list[tuple[tuple[int, ...], Layout]]:
    """Members are slices of DTensors: each place in their mesh has a flat parameter of its own.

    A rank knows the ranks with its place in the mesh, and not which ranks share the flat parameters of other places. It
    declares the boxes of those that it knows; the declarations of all ranks unite.
    """
    flat = handle.flat_param
    specs = [spec for spec in flat._param_extensions if spec is not None]
    mesh = specs[0].mesh
    if any(spec.mesh != mesh for spec in specs):
        raise Unsupported("an FSDP1 unit has DTensors of different meshes")
    places = mesh.mesh.flatten().tolist()
    place = places.index(dist.get_rank())
    number = {rank: index for index, rank in enumerate(places)}
    members = []
    for shape, strides, spec in zip(flat._shapes, flat._strides, flat._param_extensions):
        whole = tuple(shape if spec is None else spec.shape)
        outer = None if spec is None else layout_of_spec(spec, whole, lambda mesh: [number[rank] for rank in mesh])
        members.append(FlatMember(whole, outer, _order(strides, shape)))
    made = Layout.flat(members, world, handle._aligned_numel, len(places))
    return [(tuple(member.shape), Layout.boxes({number: layout.boxes_of(member.shape, shard * len(places) + place)
                                                for shard, number in enumerate(numbers)}))
            for member, layout in zip(members, made)]


def _handles(modules: Iterable[nn.Module]) -> Iterator[Any]:
    for module in modules:
        if isinstance(module, FSDP) and module._handle is not None:
            yield module._handle


def parameters(modules: Iterable[nn.Module], ranks: Ranks) -> dict[tuple[int, str], Parameter]:
    found: dict[tuple[int, str], Parameter] = {}
    for handle in _handles(modules):
        found.update(_members(handle, ranks))
    return found


def _members(handle: Any, ranks: Ranks) -> dict[tuple[int, str], Parameter]:
    flat = handle.flat_param
    found: dict[tuple[int, str], Parameter] = {}
    known = weakref.ref(handle)
    for index, (info, (shape, layout)) in enumerate(zip(flat._param_infos, _layouts(handle, ranks))):
        local = in_shard(shard_of(flat), flat, shape, layout, ranks.own)
        if handle._use_orig_params:
            key = flat._params[index]
            entry = Parameter("", local, key, _own_state(shape, Layout.packed(layout)), False, _now(known, index), id(key))
        else:
            entry = Parameter("", local, flat, _shared_state(shape, layout, ranks.own), True, _now(known), (id(flat), index))
        found[id(info.module), info.param_name] = entry
    for shared in flat._shared_param_infos:
        found[id(shared.module), shared.param_name] = found[id(shared.prim_module), shared.prim_param_name]
    return found


def in_shard(shard: torch.Tensor, source: torch.Tensor, shape: tuple[int, ...], layout: Layout, own: int) -> Local:
    """A member in the shard. The layout ends with its last element; the shard may have more."""
    return Local(shape, layout, shard[:layout.local_elements(shape, own)], source)


def _shared_state(shape: tuple[int, ...], layout: Layout, own: int) -> State:
    return lambda tensor: in_shard(tensor.detach(), tensor, shape, layout, own)


def _own_state(shape: tuple[int, ...], packed: Layout) -> State:
    """With original parameters a state holds the elements of the shard alone, one after another."""
    return lambda tensor: Local(shape, packed, _in_memory_order(tensor.detach()), tensor) if tensor.numel() else None


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as one row. Without sharding a state has the dims of its parameter, which may be transposed."""
    if tensor.permute(_order(tensor.stride(), tensor.shape) or tuple(range(tensor.dim()))).is_contiguous():
        return tensor.as_strided((tensor.numel(),), (1,))
    raise Unsupported(f"a state with gaps in its memory: shape {tuple(tensor.shape)}, strides {tensor.stride()}")


def _now(known: weakref.ref[Any], index: int | None = None) -> Callable[[], object]:
    def now() -> object:
        flat = getattr(known(), "flat_param", None)
        return flat if index is None or flat is None else flat._params[index]

    return now


def _is_gathered(handle: Any) -> bool:
    """Whether there is a gathered copy. After a forward it may stay for the next one, although the shards are registered again."""
    flat = handle.flat_param
    copy = getattr(flat, "_full_param_padded", None)  # not before the first forward
    return flat.data_ptr() != shard_of(flat).data_ptr() or copy is not None and copy.untyped_storage().size() > 0


def reshard(model: nn.Module) -> None:
    for handle in _handles(model.modules()):
        if handle.uses_sharded_strategy and _is_gathered(handle):
            handle.reshard(True)
