# SPDX-License-Identifier: Apache-2.0
"""Catalogs of a model and its optimizers, kept for the next call."""

from __future__ import annotations

import operator
import weakref
from typing import Any, Callable, Sequence

import torch
from torch import nn

from .. import Catalog, Error, TensorKey
from .._types import Absent
from ._dtypes import name_of
from ._layouts import REPLICATED, Local, Ranks, local_of
from ._model import buffers, parameters, require_memory
from ._optimizers import Optimized, list_of, optimized

PARAM, BUFFER, GROUP = "param", "buffer", "param_group"
"""States under which a parameter, a buffer and the options of a parameter's group are published."""


Absences = Callable[[TensorKey, bool, bool], Absent]
"""What to do where no source has a tensor, given its key, whether parameters share the state, and whether it is a scalar."""


class ModelCatalog:
    """The tensors of a model and its optimizers on this rank, with a catalog of their memory.

    A publishing catalog names memory alone. A wanting one has memory of its own for states that several parameters share,
    because no two wanted tensors may share memory: see `shared`.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], ranks: Ranks, wanting: bool,
                 absent: Absences | None = None) -> None:
        self.ranks = ranks
        self.catalog = Catalog(ranks.own, ranks.count)
        self.wanting = wanting
        self.requested = False  # whether values have been asked for
        self.parameters = parameters(model, ranks)
        self.optimized = optimized(self.parameters, optimizers)
        self.values: dict[TensorKey, Any] = {}  # states that are no tensors
        # A state, and the key and memory with which a parameter that shares it receives its own.
        self.shared: list[tuple[torch.Tensor, TensorKey, torch.Tensor]] = []
        self._absent = absent
        self._published: dict[TensorKey, Any] = {}
        self._tensors: list[torch.Tensor] = []
        self._owner: list[Any] = []  # keeps all memory alive; the catalog holds it
        self._event = 0
        with torch.no_grad():
            self._record_event(model)
            for parameter in self.parameters:
                self._add(parameter.fqn, PARAM, parameter.local)
            for fqn, buffer in buffers(model):
                self._add(fqn, BUFFER, local_of(buffer, ranks))
            for one in self.optimized:
                for name, value in one.state.items():
                    self._add_state(one, name, value)
            for parameter in self.parameters:
                for alias in parameter.aliases:
                    self.catalog.alias(alias, parameter.fqn)
        self._remember(model, optimizers)

    def _record_event(self, model: nn.Module) -> None:
        device = next((p.device for p in model.parameters() if p.is_cuda), None)
        if device is not None:
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._owner.append(event)
            self._event = event.cuda_event

    def _add(self, fqn: str, state: str, local: Local, shares: bool = False) -> None:
        tensor = local.tensor
        require_memory(f"{fqn}:{state}", tensor)
        strides = () if tensor.is_contiguous() else tensor.stride()
        device = tensor.get_device()
        self._owner.append(tensor)
        self._tensors.append(tensor)
        self.catalog.add_address(fqn, state, name_of(tensor.dtype), local.shape, local.layout, tensor.data_ptr(), strides,
                                 tensor.numel(), self._owner, device, self._event if device >= 0 else 0,
                                 self._absent(TensorKey(fqn, state), shares, local.shape == ()) if self._absent else "error")

    def _add_state(self, one: Optimized, name: str, value: Any) -> None:
        fqn = one.parameter.fqn
        if not isinstance(value, torch.Tensor):
            self.values[TensorKey(fqn, name)] = value
        elif value.dim() == 0:
            scalar = value
            if self.wanting and one.parameter.shares_state:
                scalar = torch.empty_like(value)
                self.shared.append((value, TensorKey(fqn, name), scalar))
            self._add(fqn, name, Local((), REPLICATED, scalar), one.parameter.shares_state)
        else:
            try:
                local = one.parameter.state(value)
            except Error as error:
                raise type(error)(f"{fqn}:{name}: {error}", error.gaps, error.ranks) from None
            if local is not None:
                self._add(fqn, name, local, one.parameter.shares_state)

    def set_values(self, values: dict[TensorKey, Any]) -> None:
        """Adds values to the catalog, or replaces those that differ."""
        for key, value in values.items():
            if key not in self._published:
                self.catalog.add_value(key.fqn, key.state, value)
            elif self._published[key] != value:
                self.catalog.set_value(key.fqn, key.state, value)
        self._published = values

    # The catalog stays right while the objects in which a model and its optimizers keep their tensors are the same, and the
    # tensors have their memory. The catalog keeps the tensors alive, so no other can have come to their addresses.
    def _remember(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        kept = {id(tensor) for parameter in self.parameters for tensor in [parameter.key]}
        places: list[tuple[dict[Any, Any], Any]] = []
        for module in model.modules():
            for registered in (module._parameters, module._buffers):
                places.extend((registered, name) for name, tensor in registered.items()
                              if registered is module._buffers or id(tensor) in kept)
        states = [one.state for one in self.optimized]
        for state in states:
            places.extend((state, name) for name in state)
        self._containers = [container for container, _ in places]
        self._names = [name for _, name in places]
        self._things = [container[name] for container, name in places]
        self._sized = [*states, *(optimizer.state for optimizer in optimizers),
                       *(group["params"] for optimizer in optimizers for group in optimizer.param_groups)]
        self._sizes = list(map(len, self._sized))
        self._pointers = [tensor.data_ptr() for tensor in self._tensors]

    def is_current(self) -> bool:
        """Whether the catalog still names the memory of the model and its optimizers."""
        if self._event:
            return False  # work on a device may have been queued since
        return (list(map(len, self._sized)) == self._sizes
                and all(map(operator.is_, map(dict.get, self._containers, self._names), self._things))
                and [tensor.data_ptr() for tensor in self._tensors] == self._pointers)


_MOST_KEPT = 6  # of one model: each call that differs in optimizers, ranks, values or names has one
_kept: weakref.WeakKeyDictionary[nn.Module, dict[Any, ModelCatalog]] = weakref.WeakKeyDictionary()


def model_catalog(model: nn.Module, optimizers: Any, ranks: Ranks, wanting: bool, absent: Absences | None = None,
                  key: Any = None) -> ModelCatalog:
    """The catalog of an earlier call if it is still right. `key` tells catalogs apart that are changed by their users."""
    listed = list_of(optimizers)
    kept = _kept.setdefault(model, {})
    name = (wanting, ranks.key, tuple(map(id, listed)), key)
    known = kept.get(name)
    if known is None or not known.is_current():
        for other in [other for other, catalog in kept.items() if not catalog.is_current()]:
            del kept[other]
        if len(kept) >= _MOST_KEPT:
            del kept[next(iter(kept))]
        known = kept[name] = ModelCatalog(model, listed, ranks, wanting, absent)
    return known


def catalog_of(model: nn.Module, optimizers: Any = None, *, rank: int | None = None, world_size: int | None = None,
               ranks: int | Sequence[int] | None = None) -> Catalog:
    """The parameters, buffers and optimizer states of this rank, for `Session.publish`, `Session.restore` and `plan`.

    A repeated call gives the same catalog while the tensors are the same, so that the library finds the plan of the last
    restore. The catalog keeps their memory alive. Options of parameter groups are not in it: see publish().
    """
    return model_catalog(model, optimizers, default_ranks(rank, world_size, ranks), wanting=False, key="catalog_of").catalog


def default_ranks(rank: int | None = None, world_size: int | None = None, ranks: int | Sequence[int] | None = None) -> Ranks:
    import torch.distributed as dist

    if rank is None or world_size is None:
        joined = dist.is_available() and dist.is_initialized()
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    return Ranks(rank, world_size, ranks)
