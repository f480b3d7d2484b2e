# SPDX-License-Identifier: Apache-2.0
"""Layouts of DTensors."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import placement_types as torch_placements

from .. import Layout, LayoutMismatch, Replicate, Shard, StridedShard, Unsupported

Numbers = Callable[[Sequence[int]], list[int]]


def is_dtensor(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return cast(torch.Tensor, tensor._local_tensor)  # type: ignore[attr-defined]


def _placement(placement: Any) -> Replicate | Shard | StridedShard:
    if isinstance(placement, torch_placements._StridedShard):
        return StridedShard(placement.dim, int(placement.split_factor))
    if isinstance(placement, torch_placements.Shard):
        return Shard(placement.dim)
    if isinstance(placement, torch_placements.Replicate):
        return Replicate()
    if isinstance(placement, torch_placements.Partial):
        raise LayoutMismatch(f"a tensor is Partial ({placement}): reduce it before it is published or restored")
    raise Unsupported(f"a tensor has the placement {placement}, which has no layout")


def _in_shard_order(spec: Any) -> tuple[Any, list[Any]]:
    """Ranks of the mesh and placements, permuted so that dims are split from left to right."""
    mesh, placements = spec.mesh.mesh, list(spec.placements)
    order = getattr(spec, "shard_order", None)
    if not order or getattr(spec, "use_strided_shard_as_shard_order", False) or spec.is_default_device_order(order):
        return mesh, placements
    # Mesh dims that shard one dim take each other's places; the others stay.
    permutation = list(range(mesh.ndim))
    for entry in order:
        for place, dim in zip(sorted(entry.mesh_dims), entry.mesh_dims):
            permutation[place] = dim
    return mesh.permute(permutation), [placements[dim] for dim in permutation]


def _ranks(mesh: Any, placements: Sequence[Any]) -> list[int]:
    """The rank that holds each place of the mesh, row-major.

    The groups of a mesh count their ranks upwards, and a rank holds the part of its number in the group. Where the ranks of a
    mesh do not ascend, that is not its coordinate.
    """
    sharded = [dim for dim in range(mesh.ndim) if not placements[dim].is_replicate()]
    if all(bool((mesh.diff(dim=dim) > 0).all()) for dim in sharded):
        return [int(rank) for rank in mesh.flatten().tolist()]
    numbers = [mesh.argsort(dim=dim).argsort(dim=dim).flatten().tolist() for dim in sharded]
    places = [torch.arange(mesh.size(dim), device="cpu").reshape([-1 if other == dim else 1 for other in range(mesh.ndim)]).expand_as(
        mesh).flatten().tolist() for dim in sharded]
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank, *place in zip(mesh.flatten().tolist(), *numbers):
        holders.setdefault(tuple(place), []).append(rank)
    wanted = list(zip(*places))
    if any(len(holders.get(place, ())) != wanted.count(place) for place in set(wanted)):
        raise Unsupported(f"the ranks {mesh.tolist()} of a mesh do not ascend: no rank has some of the parts of a tensor")
    return [holders[place].pop(0) for place in wanted]


def layout_of_spec(spec: Any, shape: Sequence[int], numbers: Numbers) -> Layout:
    """The layout of a DTensor that is not at hand, without strided shards."""
    mesh, placements = _in_shard_order(spec)
    layout = Layout.mesh(tuple(mesh.shape), [_placement(placement) for placement in placements], "mesh",
                         numbers(_ranks(mesh, placements)))
    layout.check(shape, mesh.numel())
    return layout


def layout_of_dtensor(tensor: torch.Tensor, numbers: Numbers, known: dict[tuple[Any, ...], tuple[Any, Layout]],
                      strided_first: bool | None = None) -> Layout:
    """The layout of a DTensor. `numbers` gives ranks their numbers in the layout. `known` keeps layouts: many tensors have the same.

    A strided shard means that a later mesh dim has split the dim before. FSDP2 over TP really splits that way, while other
    DTensors split as their own arithmetic says; the two differ in uneven dims. `strided_first` tells which it is; None finds
    out by the number of elements that this rank has.
    """
    spec = tensor._spec  # type: ignore[attr-defined]
    strided = any(isinstance(placement, torch_placements._StridedShard) for placement in spec.placements)
    uneven = strided and strided_first is None
    key = (id(spec.mesh), spec.placements, getattr(spec, "shard_order", None), strided_first, tuple(tensor.shape) if uneven else None)
    found = known.get(key)
    if found is not None:
        return found[1]
    mesh, placements = _in_shard_order(spec)
    own = [_placement(placement) for placement in placements]
    ranks = numbers(_ranks(mesh, placements))

    def made(order: Any) -> Layout:
        return Layout.mesh(tuple(mesh.shape), own, order, ranks)

    layout = made("tp_first" if strided and strided_first is not False else "mesh")
    if uneven and spec.mesh.get_coordinate() is not None:
        [rank] = numbers([dist.get_rank()])
        if sum(math.prod(box.size) for box, _, _ in layout.boxes_of(tensor.shape, rank)) != local_tensor(tensor).numel():
            layout = made("mesh")
    known[key] = (spec.mesh, layout)  # with the mesh, so that its id stays its own
    return layout
