# SPDX-License-Identifier: Apache-2.0
"""Sessions of the ranks of a process group."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch.distributed as dist

from .. import InvalidArgument, Session


class _Store:
    """A store of torch.distributed. A waiting handle blocks its other calls, so this has one of its own where it can."""

    def __init__(self, store: Any) -> None:
        self._store = _clone(store)

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes | None:
        try:
            self._store.wait([key], datetime.timedelta(seconds=max(timeout, 0.001)))
        except RuntimeError as error:  # each store has its own class
            if "imeout" in str(error) or "imed out" in str(error):
                return None
            raise
        value = self._store.get(key)
        return value if isinstance(value, bytes) else bytes(value)


def join(store: Any = None, rank: int | None = None, world_size: int | None = None, **options: Any) -> Session:
    """Joins the ranks of the default process group, or those that `store` connects.

    Every rank calls it, and again for each further session. `options` are those of Session.join(). Without a store and
    without a default group, the launcher's environment tells rank and address. Several jobs join one session by `address` and
    `port` of its member 0 and a common `run_id`, with a rank and a world size that count the ranks of all of them.
    """
    if (rank is None) != (world_size is None):
        raise InvalidArgument("join() takes rank and world_size together, or neither")
    initialized = dist.is_available() and dist.is_initialized()
    if store is None and initialized and "address" not in options:
        # Each session has keys of its own: all ranks join the same number of times. torchrun's store outlives an attempt, of
        # which some ranks may have ended before they joined.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        default = dist.distributed_c10d.PrefixStore(f"shardwire/{attempt}", _clone(dist.distributed_c10d._get_default_store()))
        count = default.add(f"joins/{dist.get_rank()}", 1)
        store = dist.distributed_c10d.PrefixStore(str(count), default)
    if rank is None and initialized:
        rank, world_size = dist.get_rank(), dist.get_world_size()
    if store is None and rank is None:
        return Session.join(**options)
    if rank is None:
        raise InvalidArgument("join() with a store needs rank and world_size")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 0))  # of the launcher's job, which may be one of several
    several = initialized and dist.get_world_size() < (world_size or 0)
    options.setdefault("local_size", local if local <= (world_size or 0) and not several else 0)
    return Session.join(rank=rank, world_size=world_size, store=None if store is None else _Store(store), **options)


def _clone(store: Any) -> Any:
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store
