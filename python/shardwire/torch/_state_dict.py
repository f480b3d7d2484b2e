# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch.distributed.checkpoint, published in place of being saved."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from .. import Box, Error, InvalidArgument, Layout, LayoutMismatch, PlacedBox, Publication, Session, TensorKey, Unsupported
from .._types import Snapshot
from ._entries import Entries
from ._layouts import Local, Ranks, local_of, ranks_of

TENSOR, VALUE, _PATH = "", "value", "path:"
"""States of an entry: its elements, or its value. The keys of the nested dicts in which it lies are part of a state's name, so
that an inventory has them."""


def _local_of_sharded(sharded: ShardedTensor, ranks: Ranks) -> Local:
    shards = sharded.local_shards()
    shape = tuple(sharded.size())
    if len(shards) > 1:
        raise Unsupported(f"a ShardedTensor has {len(shards)} shards on one rank")
    if not shards:
        empty = torch.empty(0, dtype=sharded.dtype, device="cpu")
        return Local(shape, Layout.boxes({}), empty, empty)
    meta = shards[0].metadata
    tensor = shards[0].tensor.detach()
    box = PlacedBox(Box(tuple(meta.shard_offsets), tuple(meta.shard_sizes)), 0, tensor.stride())
    return Local(shape, Layout.boxes({ranks.own: [box]}), tensor, tensor)


def _is_checkpointable(tensor: torch.Tensor) -> bool:
    """Whether the tensor says itself, as dcp's CheckpointableTensor, which parts of a global tensor it holds."""
    return all(hasattr(tensor, name) for name in ("global_shape", "global_offsets", "local_offsets", "local_sizes"))


def _local_of_checkpointable(described: Any, ranks: Ranks) -> Local:
    shape, boxes = tuple(described.global_shape), []
    if described.dim() != len(shape):
        raise Unsupported(f"a tensor of {described.dim()} dims holds parts of one with {len(shape)}: no strides lead to its elements")
    parts = list(zip(described.global_offsets, described.local_offsets, described.local_sizes, strict=True))
    for offset, place, size in parts:
        if not len(offset) == len(place) == len(size) == len(shape) or any(
                not 0 <= start <= start + extent <= whole for starts, wholes in ((offset, shape), (place, described.shape))
                for start, extent, whole in zip(starts, size, wholes)):
            raise LayoutMismatch(f"part {tuple(size)} at {tuple(offset)} of {shape}, at {tuple(place)} of {tuple(described.shape)} here")
        start = sum(step * stride for step, stride in zip(place, described.stride()))
        boxes.append(PlacedBox(Box(tuple(offset), tuple(size)), start, described.stride()))
    tensor = described.detach()
    return Local(shape, Layout.boxes({ranks.own: boxes}), tensor, tensor)


def _local_of_part(tensor: torch.Tensor, ranks: Ranks) -> Local:
    if isinstance(tensor, ShardedTensor):
        return _local_of_sharded(tensor, ranks)
    return _local_of_checkpointable(tensor, ranks) if _is_checkpointable(tensor) else local_of(tensor, ranks)


def flat_state_dict(state_dict: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Entries by the keys that dcp would use, and their paths."""
    return flatten_state_dict(_plain(state_dict))


def _plain(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state_dict.items()}


# The key is the path joined by dots, so lengths tell the parts. Indices in lists have negative ones.
def _state_of_path(key: str, path: Sequence[str | int]) -> str:
    if ".".join(map(str, path)) != key:
        raise InvalidArgument(f"{key}: the planner maps this key to the path {tuple(path)}, which spells another")
    return _PATH + ",".join(str(len(part) if isinstance(part, str) else -len(str(part))) for part in path)


def path_of(key: TensorKey) -> tuple[str | int, ...] | None:
    """The path that a key of an inventory tells of its entry."""
    if not key.state.startswith(_PATH):
        return None
    path, start = list[str | int](), 0
    for length in map(int, key.state[len(_PATH):].split(",")):
        part = key.fqn[start:start + abs(length)]
        path.append(part if length >= 0 else int(part))
        start += abs(length) + 1
    return tuple(path)


def entries_of_flat(flat: Mapping[str, Any], paths: Mapping[str, Any], ranks: Ranks) -> Entries:
    """This rank's parts of what flat_state_dict() gave."""
    entries = Entries()
    for key, value in flat.items():
        if isinstance(value, torch.Tensor):
            try:
                entries.tensors[TensorKey(key, TENSOR)] = _local_of_part(value, ranks)
            except Error as error:
                raise type(error)(f"{key}: {error}", error.gaps, error.ranks, error.report) from None
        else:
            entries.values[TensorKey(key, VALUE)] = value
        if key in paths and paths[key] != (key,):
            entries.values[TensorKey(key, _state_of_path(key, paths[key]))] = None
    return entries


def step_of(checkpoint_id: Any) -> int:
    """The step that a checkpoint_id of dcp names."""
    if not str(checkpoint_id).isdecimal():
        raise InvalidArgument(f"checkpoint_id {checkpoint_id!r} is no number: peers know checkpoints by name= and step")
    return int(str(checkpoint_id))


def publish_state_dict(session: Session, state_dict: Mapping[str, Any], *, name: str = "dcp", step: int = 0,
                       snapshot: Snapshot = "copy", flatten: bool = True, replace: Publication | None = None,
                       ranks: int | Sequence[int] | Ranks | None = None) -> Publication:
    """Publishes what `dcp.save` would write; PeerReader gives it to `dcp.load`.

    Keys are those that dcp would use. Every rank that has a part calls it. With `flatten` nested dicts and lists become
    entries of their own. `replace`: an earlier publication that this one takes the place of. `ranks`: as in publish(). Raises
    LayoutMismatch, naming the key, for tensors with Partial placements and without memory.
    """
    flat, paths = flat_state_dict(state_dict) if flatten else (_plain(state_dict), {})
    ranks = ranks_of(session, ranks)
    catalog = entries_of_flat(flat, paths, ranks).published_catalog(ranks)
    if replace is None:
        return session.publish(catalog, step=step, name=name, snapshot=snapshot)
    replace.update(catalog, step, snapshot=snapshot)
    return replace
