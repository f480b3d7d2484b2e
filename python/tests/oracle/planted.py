# SPDX-License-Identifier: Apache-2.0
"""Faults of the kinds that users of other checkpoint code reported, put into the package one at a time.

Two kinds have no place here: a limit on the number of values shows only from 90,000 parameters on, and the core resolves names.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Callable, ContextManager
from unittest import mock

import torch

import jobs
from jobs import Job


@dataclasses.dataclass(frozen=True)
class Fault:
    plant: Callable[[], ContextManager[Any]]
    recipe: str = ""
    """The kept recipe that finds it."""
    job: str = ""
    """The kept job that finds it. Drawn recipes find it if neither is named."""


def _in(module: str, **replaced: Any) -> Callable[[], ContextManager[Any]]:
    return lambda: mock.patch.multiple(importlib.import_module(f"shardwire.torch.{module}"), **replaced)


def _nothing(*_: Any) -> Any:
    return []


class _Apart:
    """Memories, all of which are taken for different ones."""

    def first(self, tensor: torch.Tensor, name: Any) -> Any:
        return name


def _session_ranks() -> ContextManager[Any]:
    ranks = importlib.import_module("shardwire.torch._layouts").Ranks

    def ranks_of(session: Any, given: Any = None) -> Any:
        return ranks(session.rank, session.world_size, given)

    return _in("_state", ranks_of=ranks_of)()


def _tensor_of(value: Any) -> torch.Tensor:
    """On the default device."""
    dtypes = importlib.import_module("shardwire.torch._dtypes")
    out = torch.empty(value.shape, dtype=dtypes.dtype_of(value.dtype))
    if value.data:
        out.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(value.data), dtype=torch.uint8, device="cpu"))
    return out


def _first_names() -> ContextManager[Any]:
    catalog = importlib.import_module("shardwire.torch._catalog")
    buffers = catalog.buffers
    return mock.patch.object(catalog, "buffers", lambda named: [(names[:1], buffer) for names, buffer in buffers(named)])


def _plain_scalars() -> ContextManager[Any]:
    optimizers = importlib.import_module("shardwire.torch._optimizers")

    def local(self: Any, tensor: torch.Tensor) -> Any:
        return self.parameter.state(tensor) if tensor.dim() else optimizers.Local((), optimizers.REPLICATED, tensor, tensor)

    return mock.patch.object(optimizers.Optimized, "local", local)


FAULTS: dict[str, Fault] = {
    "extra state of modules is not sent": Fault(_in("_catalog", extra_states=_nothing)),
    "entries of no parameter are dropped": Fault(_in("_publish", entries=_nothing)),
    "lazy views are taken for what lies in memory": Fault(
        _in("_entries", memory_of=lambda key, tensor: tensor.untyped_storage()),
        recipe="a view that changes signs, into a plain buffer"),
    "one of two weights that drifted apart is dropped": Fault(
        _in("_restore", _require_equal_ties=_nothing), recipe="weights that drifted apart, into one"),
    "members of the session are taken for ranks of the process group": Fault(_session_ranks, job="uneven rows, and members named"),
    "stale states stay": Fault(
        _in("_restore", _drop_other_states=_nothing), recipe="a parameter that the sources never stepped"),
    "values arrive on the default device": Fault(_in("_values", tensor_of=_tensor_of)),
    "destinations of one memory are refused": Fault(_in("_catalog", Memories=_Apart), recipe="weights tied by .data"),
    "buffers have one name": Fault(_first_names, recipe="a buffer of two names, into two"),
    "DTensors without dims are refused": Fault(_plain_scalars, job="states that are DTensors without dims, and lists of DTensors"),
    "lists of tensors are values": Fault(
        _in("_lists", tensors_in=lambda name, thing: {}), job="states that are DTensors without dims, and lists of DTensors"),
}


def run(rank: int, world: int, job: Job, name: str, fault: str) -> tuple[str, list[str]]:
    """jobs.run() with a fault."""
    with FAULTS[fault].plant():
        return jobs.run(rank, world, job, name)
