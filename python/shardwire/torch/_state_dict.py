# SPDX-License-Identifier: Apache-2.0
"""State dicts of torch.distributed.checkpoint, published in place of being saved."""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from .. import Box, Catalog, Error, Layout, Publication, Session, Unsupported
from .._types import Snapshot
from ._dtypes import name_of
from ._layouts import Local, Ranks, local_of
from ._model import memory_of
from ._values import to_value

TENSOR, VALUE, PATH = "", "value", "path"
"""States of an entry: its elements, or its value; and the keys of the nested dicts in which it lies."""


def _local_of_sharded(tensor: ShardedTensor, ranks: Ranks) -> Local:
    shards = tensor.local_shards()
    shape = tuple(tensor.size())
    if len(shards) > 1:
        raise Unsupported(f"a ShardedTensor has {len(shards)} shards on one rank")
    if not shards:
        empty = torch.empty(0, dtype=tensor.dtype)
        return Local(shape, Layout.boxes({}), empty, empty)
    meta = shards[0].metadata
    return Local(shape, Layout.boxes({ranks.own: [Box(tuple(meta.shard_offsets), tuple(meta.shard_sizes))]}),
                 shards[0].tensor.detach(), shards[0].tensor)


def add_tensor(catalog: Catalog, key: str, local: Local, owner: Any) -> None:
    """Adds an entry that is a tensor."""
    tensor = local.tensor
    memory_of(key, "", tensor)
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported(f"{key} is a view that changes the sign of its elements: resolve_conj() and resolve_neg() first")
    catalog.add_address(key, TENSOR, name_of(tensor.dtype), local.shape, local.layout, tensor.data_ptr(),
                        () if tensor.is_contiguous() else tensor.stride(), tensor.numel(), owner, tensor.get_device())


def publish_state_dict(session: Session, state_dict: Mapping[str, Any], *, name: str = "dcp", step: int = 0,
                       snapshot: Snapshot = "copy", flatten: bool = True, replace: Publication | None = None) -> Publication:
    """Publishes what `dcp.save` would write; PeerReader gives it to `dcp.load`.

    Keys are those that dcp would use. Every rank that has a part calls it. With `flatten` nested dicts and lists become
    entries of their own. `replace`: an earlier publication that this one takes the place of. Raises LayoutMismatch, naming
    the key, for tensors with Partial placements and without memory.
    """
    flat, paths = flatten_state_dict(dict(state_dict)) if flatten else (dict(state_dict), {})
    ranks = Ranks(session.rank, session.world_size, None)
    catalog = Catalog(ranks.own, ranks.count)
    tensors = [value for value in flat.values() if isinstance(value, torch.Tensor)]
    for key, value in flat.items():
        try:
            if isinstance(value, ShardedTensor):
                add_tensor(catalog, key, _local_of_sharded(value, ranks), tensors)
            elif isinstance(value, torch.Tensor):
                add_tensor(catalog, key, local_of(value, ranks), tensors)
            else:
                catalog.add_value(key, VALUE, to_value(value))
        except Error as error:
            raise error if key in str(error) else type(error)(f"{key}: {error}", error.gaps, error.ranks) from None
        catalog.add_value(key, PATH, list(paths.get(key, (key,))))
    if replace is None:
        return session.publish(catalog, step=step, name=name, snapshot=snapshot)
    replace.update(catalog, step, snapshot=snapshot)
    return replace
