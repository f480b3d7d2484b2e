# SPDX-License-Identifier: Apache-2.0
"""Peers as the storage to which torch.distributed.checkpoint saves."""

from __future__ import annotations

import contextlib
import logging
import math
from typing import Any, Sequence

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .. import InvalidArgument, Session, Unsupported
from .._types import Seconds, Snapshot
from ._latest import Latest
from ._layouts import Ranks, ranks_of
from ._state_dict import entries_of_flat, flat_state_dict, step_of

logger = logging.getLogger(__name__)

_CHOOSE_WHAT_IS_WRITTEN = ("create_local_plan", "lookup_object", "resolve_data", "transform_object")


def _bytes_of(item: WriteItem) -> int:
    data = item.tensor_data
    return math.prod(data.chunk.sizes) * data.properties.dtype.itemsize if data else 0


class PeerWriter(StorageWriter, AsyncStager):
    """Publishes what `dcp.save` and `dcp.async_save` save; PeerReader gives it to `dcp.load`.

    The writer owns the publication, which lasts until close(). Each save replaces the one before: peers of a rank see the old or
    the new one. It needs a step of its own: assign `step`, or pass the number as `checkpoint_id`. One writer serves one save at
    a time. Every rank publishes all that it holds, also replicas that DCP would have another rank write. With snapshot "copy"
    training may go on once `dcp.save` has returned. With "none" nothing may change until close(), and the next save needs other
    memory. The copy that `async_save` makes is published as it is, unless a stager of the caller makes it.
    `keep`, `buddies`, `ranks`: as in publish(). Errors come out of `dcp.save` as its CheckpointException.
    """

    def __init__(self, session: Session, *, name: str = "dcp", step: int | None = None, snapshot: Snapshot = "copy", keep: int = 0,
                 buddies: int = 0, buddy_bytes_per_second: int = 0, ranks: int | Sequence[int] | Ranks | None = None) -> None:
        self.step, self._snapshot = step, snapshot
        self._latest = Latest(session, name, keep=keep, buddies=buddies, buddy_bytes_per_second=buddy_bytes_per_second)
        self._ranks = ranks_of(session, ranks)
        self._staged: list[torch.Tensor] = []

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self.step = step_of(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return str(checkpoint_id).isdecimal()

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=str(self.step))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self.step is None:
            raise InvalidArgument("a save through PeerWriter needs a step, or its number as checkpoint_id")
        if self.step == self._latest.step:
            # Readers could not tell the two apart, and would take parts of both.
            raise InvalidArgument(f"step {self.step} of '{self._latest.name}' is saved already: assign another step, or close() first")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy on the host, which nothing but the publication will use."""
        with contextlib.closing(DefaultStager(StagingOptions(False, False, False, False))) as stager:
            staged: dict[str, Any] = stager.stage(state_dict)  # type: ignore[assignment]
        self._staged = [value for value in flat_state_dict(staged)[0].values() if isinstance(value, torch.Tensor)]
        return staged

    @torch.no_grad()
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if not isinstance(planner, DefaultSavePlanner) or any(
                getattr(type(planner), name) is not getattr(DefaultSavePlanner, name) for name in _CHOOSE_WHAT_IS_WRITTEN):
            raise Unsupported(f"{type(planner).__name__} chooses or changes what is written: PeerWriter publishes the state dict of "
                              "a DefaultSavePlanner as it is")
        assert self.step is not None
        flat: dict[str, Any] = planner.state_dict
        catalog = entries_of_flat(flat, planner.mappings, self._ranks).published_catalog(self._ranks)
        own = {id(tensor) for tensor in self._staged}
        staged = all(id(value) in own for value in flat.values() if isinstance(value, torch.Tensor))
        snapshot: Snapshot = "none" if staged else self._snapshot
        self._staged = []
        self._latest.publish(catalog, self.step, snapshot)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, _bytes_of(item), None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_meta = self.storage_meta()

    def close(self, timeout: Seconds = 10) -> None:
        """Ends the publication; raises as Publication.retire(). The next save begins another."""
        self._latest.retire(timeout)

    def __enter__(self) -> PeerWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        latest = getattr(self, "_latest", None)
        if latest is None or latest.publication is None:
            return
        with contextlib.suppress(Exception):
            latest.session.usage()  # raises if the session has ended
            logger.warning("a PeerWriter was destroyed, and with it step %s of '%s': keep it as long as peers read, then close() "
                           "it", latest.step, latest.name)

    def __reduce__(self) -> Any:
        raise Unsupported("PeerWriter publishes memory of its own process: use AsyncCheckpointerType.THREAD")
