# SPDX-License-Identifier: Apache-2.0
"""FSDP1: FullyShardedDataParallel. Parameters are members of flat parameters, each split evenly over a process group."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from .. import FlatMember, Layout, Unsupported
from ._layouts import Local, Ranks


def is_flat(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, "_is_flat_param", False))


def _shard_of(flat: Any) -> torch.Tensor:
    # Before the first forward the parameter is its own shard.
    shard = getattr(flat, "_local_shard", None)
    tensor: torch.Tensor = flat.data if shard is None else shard
    return tensor.detach()


def _order(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Dims from outermost to innermost in memory; empty for row-major."""
    order = tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim)))
    return () if order == tuple(range(len(shape))) else order


def _layouts(handle: Any, ranks: Ranks) -> list[Layout]:
    flat = handle.flat_param
    if any(extension is not None for extension in flat._param_extensions):
        return _layouts_over_dtensors(handle, ranks)
    members = [FlatMember(tuple(shape), order=_order(strides, shape)) for shape, strides in zip(flat._shapes, flat._strides)]
    world, group = _shards(handle)
    made = Layout.flat(members, world, handle._aligned_numel)
    numbers = ranks.of(group)
    return [Layout.on_ranks(layout, numbers) for layout in made]


def _shards(handle: Any) -> tuple[int, list[int]]:
    """The number of shards, and the ranks that hold them."""
    if not handle.uses_sharded_strategy:
        return 1, [dist.get_rank()]
    return handle.world_size, dist.get_process_group_ranks(handle.process_group)


def _layouts_over_dtensors(handle: Any, ranks: Ranks) -> list[Layout]:
    """Members are slices of a tensor-parallel mesh: each of its ranks has a flat parameter of its own."""
    raise Unsupported("FSDP1 over tensor parallelism: use fully_shard() (FSDP2), whose layout is supported")


def parameters(model: nn.Module, ranks: Ranks) -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}
    for wrapper in FSDP.fsdp_modules(model):
        handle: Any = wrapper._handle
        if handle is not None:
            found.update(_members(handle, ranks))
    return found


def _members(handle: Any, ranks: Ranks) -> dict[tuple[int, str], Any]:
    flat = handle.flat_param
    shard = _shard_of(flat)
    found: dict[tuple[int, str], Any] = {}
    own = ranks.own
    for index, (info, layout) in enumerate(zip(flat._param_infos, _layouts(handle, ranks))):
        shape = tuple(flat._shapes[index])
        local = _in_shard(shard, shape, layout, own)
        if handle._use_orig_params:
            key = flat._params[index]
            packed = Layout.packed(layout)
            entry: Any = (id(key), local, key, lambda tensor, shape=shape, packed=packed: _own_state(tensor, shape, packed), False)
        else:
            key = flat
            entry = ((id(flat), index), local, key,
                     lambda tensor, shape=shape, layout=layout: _in_shard(tensor.detach(), shape, layout, own), True)
        found[id(info.module), info.param_name] = entry
    for shared in flat._shared_param_infos:
        found[id(shared.module), shared.param_name] = found[id(shared.prim_module), shared.prim_param_name]
    return found


def _in_shard(shard: torch.Tensor, shape: tuple[int, ...], layout: Layout, own: int) -> Local:
    """A member in the shard. One that is not split may have padding at its end, for ranks that do not split it."""
    return Local(shape, layout, shard[:layout.local_elements(shape, own)])


def _own_state(tensor: torch.Tensor, shape: tuple[int, ...], packed: Layout) -> Local | None:
    """With original parameters a state holds the elements of the shard alone, one after another."""
    return Local(shape, packed, tensor.detach()) if tensor.numel() else None


def reshard(model: nn.Module) -> None:
    for wrapper in FSDP.fsdp_modules(model):
        handle: Any = wrapper._handle
        if handle is not None and handle.uses_sharded_strategy and handle.flat_param.data_ptr() != _shard_of(
                handle.flat_param).data_ptr():
            handle.reshard(True)
