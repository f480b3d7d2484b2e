# SPDX-License-Identifier: Apache-2.0
"""Peers as the storage from which torch.distributed.checkpoint loads."""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import pickle
from typing import Any, Iterable, Sequence

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, TensorProperties
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor.placement_types import _StridedShard
from torch.futures import Future

from .. import (Box, Inventory, Layout, LayoutMismatch, PlacedBox, Report, Session, StepMismatch, TensorInfo, TensorKey,
                Unsupported, Withdrawn)
from .._types import Seconds, Verify
from ._awaiting import Deadline
from ._dtensor import is_dtensor
from ._dtypes import dtype_of, name_of
from ._entries import Entries
from ._layouts import Local, Ranks, local_of, ranks_of
from ._model import Memories, synchronize
from ._moving import Target, Tie, copies_of, move, require_equal
from ._state_dict import TENSOR, VALUE, path_of, step_of
from ._values import from_value


def _is_strided(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and is_dtensor(tensor) and any(
        isinstance(placement, _StridedShard) for placement in tensor._spec.placements)  # type: ignore[attr-defined]


class _Items(collections.UserList[ReadItem]):
    """Items of a plan. The coordinator passes those of other ranks on as bytes, unless its planner looks at them."""

    _packed: bytes

    def __init__(self, items: Iterable[ReadItem]) -> None:
        self.data = list(items)

    @functools.cached_property
    def data(self) -> list[ReadItem]:  # type: ignore[override]
        items: list[ReadItem] = pickle.loads(self._packed)
        return items

    def __reduce__(self) -> Any:
        return _packed, (pickle.dumps(self.data) if "data" in self.__dict__ else self._packed,)


def _packed(items: bytes) -> _Items:
    made = _Items.__new__(_Items)
    made._packed = items
    return made


@dataclasses.dataclass
class _Agreed:
    step: int
    alone: bool
    """Whether one rank loads by itself."""


class _NotFound:
    """Stands for metadata that could not be read.

    `dcp.load` of torch 2.11 hides what read_metadata raises, but not what the use of metadata raises.
    """

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def __getattr__(self, name: str) -> Any:
        raise self._failure


class PeerReader(StorageReader):
    """Gives `dcp.load` what peers published with PeerWriter or publish_state_dict(), out of their memory.

    One reader serves one load at a time, `no_dist=True` too. `report` has the figures of the last load. Without a `step`, and
    without its number as `checkpoint_id`, it loads the newest step that all ranks have published. Ranks that load together agree
    on it, and raise Withdrawn if the sources replace it meanwhile; a rank that loads alone takes the next one. Types have to
    agree: raises LayoutMismatch where dcp would convert or misread. `ranks`: the loading ranks, as in publish(). `wait`: whether
    ranks may be about to publish, and are waited for. Errors come out of `dcp.load` as its CheckpointException.
    """

    def __init__(self, session: Session, *, name: str = "dcp", step: int | None = None, timeout: Seconds = 60,
                 verify: Verify = "generation", ranks: int | Sequence[int] | Ranks | None = None, wait: bool = True) -> None:
        self._session, self._name, self._step, self._wait = session, name, step, wait
        self._ranks = ranks_of(session, ranks)
        self._seconds, self._verify = timeout, verify
        self._inventory: Inventory | None = None
        self._failure: Exception | None = None
        self._infos: dict[TensorKey, TensorInfo] = {}
        self.report: Report | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        self._inventory = self._failure = None
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return checkpoint_id is None or str(checkpoint_id).isdecimal()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._failure is not None and "rank" in kwargs:
            # dcp asks again for metadata of this rank alone: another timeout would pass.
            return _NotFound(self._failure)  # type: ignore[return-value]
        try:
            return self._read_metadata(self._step, Deadline(self._seconds))
        except Exception as error:
            self._failure = error
            raise

    def _read_metadata(self, step: int | None, until: Deadline) -> Metadata:
        inventory = self._session.await_step(self._name, step, until.left()) if self._wait else self._session.inventory(
            self._name, step, until.left())
        if not inventory.publishers:
            raise StepMismatch(f"nobody publishes {'a step' if step is None else f'step {step}'} of '{self._name}'")
        self._inventory = inventory
        values = inventory.values
        entries: dict[str, Any] = {key.fqn: BytesStorageMetadata() for key in values if key.state == VALUE}
        self._infos = inventory.tensors
        for key, info in self._infos.items():
            # One whole chunk: dcp then asks once for each destination, and the plan of the library finds the holders.
            shape = torch.Size(info.shape)
            chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
            entries[key.fqn] = TensorStorageMetadata(TensorProperties(dtype=dtype_of(info.dtype)), shape, [chunk])
        paths = {key.fqn: path for key in values if (path := path_of(key))}
        return Metadata(entries, planner_data={key: paths.get(key, (key,)) for key in entries})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._failure is not None:
            raise self._failure

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._inventory is not None
        return dataclasses.replace(plan, items=_Items(plan.items), storage_data=self._inventory.step)  # type: ignore[arg-type]

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        # Sources may have gone on to another step while ranks looked.
        agreed = _Agreed(max(plan.storage_data for plan in plans), len(plans) == 1)
        return [dataclasses.replace(plan, storage_data=agreed) for plan in plans]

    @torch.no_grad()
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        until = Deadline(self._seconds)
        agreed: _Agreed = plan.storage_data
        if self._inventory is None or self._inventory.step != agreed.step:
            self._read_metadata(agreed.step, until)
        while True:
            try:
                self._read(plan, planner, until)
                break
            except Withdrawn:
                if not agreed.alone or self._step is not None or not until.left():
                    raise
            self._read_metadata(None, until)  # the sources have gone on
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, plan: LoadPlan, planner: LoadPlanner, until: Deadline) -> None:
        assert self._inventory is not None
        inventory = self._inventory
        entries = Entries()
        tensors: dict[str, list[tuple[ReadItem, torch.Tensor]]] = {}
        others: list[ReadItem] = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                others.append(item)
            else:
                tensors.setdefault(item.storage_index.fqn, []).append((item, planner.resolve_tensor(item).detach()))
        strided = self._strided(planner)
        memories, written, ties = Memories(), list[torch.Tensor](), list[Tie]()
        for name in dict.fromkeys([*strided, *tensors]):
            key, whole = TensorKey(name, TENSOR), strided.get(name)
            here = [tensor for _, tensor in tensors[name]] if whole is None else [whole.tensor]
            self._require_type(key, here[0])
            first = [memories.first(part, key) for part in here]
            if key not in first:  # another name of memory that is read into already
                copies = copies_of(here)
                ties += zip(first, [key] * len(here), here, copies)
                here = copies
            written += here
            entries.tensors[key] = self._local(name, [item for item, _ in tensors[name]], here) if whole is None else (
                dataclasses.replace(whole, tensor=here[0]))
        synchronize(written)
        target = Target(entries, self._ranks, None, {}, [*written])  # parts of one entry may lie in several memories
        for name in dict.fromkeys(item.storage_index.fqn for item in others):
            target.catalog.add_value(name, VALUE, agree="any")
        values: dict[TensorKey, Any] = {}
        self.report = move(self._session, target, inventory, until, lambda moving: values.update(moving.values()), name=self._name,
                           verify=self._verify).report
        require_equal(ties)
        for item in others:
            file = io.BytesIO()
            torch.save(from_value(values[TensorKey(item.storage_index.fqn, VALUE)]), file)
            file.seek(0)
            planner.load_bytes(item, file)
        for parts in tensors.values():
            for item, tensor in parts:
                planner.commit_tensor(item, tensor)

    # Items of dcp are wrong for uneven dims that are split twice: their tensors are restored by their layout instead.
    def _strided(self, planner: LoadPlanner) -> dict[str, Local]:
        found = {key: tensor for key, tensor in getattr(planner, "state_dict", {}).items()
                 if _is_strided(tensor) and TensorKey(key, TENSOR) in self._infos}
        if found and not isinstance(planner, DefaultLoadPlanner):
            raise Unsupported(f"{next(iter(found))}: tensors of FSDP2 over TP need dcp's DefaultLoadPlanner")
        return {key: local_of(tensor, self._ranks) for key, tensor in found.items()}

    def _local(self, key: str, items: Sequence[ReadItem], parts: Sequence[torch.Tensor]) -> Local:
        """One entry for all destinations of a key; places count from the lowest address."""
        info = self._infos.get(TensorKey(key, TENSOR))
        if info is None:
            raise LayoutMismatch(f"{key}: the sources no longer have it")
        base = min(parts, key=torch.Tensor.data_ptr)
        boxes = []
        for item, part in zip(items, parts):
            place = (part.data_ptr() - base.data_ptr()) // part.element_size()
            boxes.append(PlacedBox(Box(tuple(item.storage_offsets), tuple(item.lengths)), place, part.stride()))
        return Local(info.shape, Layout.boxes({self._ranks.own: boxes}), base, base)

    def _require_type(self, key: TensorKey, tensor: torch.Tensor) -> None:
        info = self._infos.get(key)
        if info is not None and info.dtype != name_of(tensor.dtype):
            raise LayoutMismatch(f"{key.fqn}: source has {info.dtype}, target wants {name_of(tensor.dtype)}")
