# SPDX-License-Identifier: Apache-2.0
"""Catalogs of a model and its optimizers, kept for the next call."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from typing import Any, Callable, Iterator, Sequence

import torch
from torch import nn

from .. import Error, TensorKey, Unsupported
from .._types import Absent
from ._dtensor import is_dtensor
from ._entries import BUFFER, EXTRA, GROUP, PARAM, Entries, each_object
from ._layouts import REPLICATED, Local, Parameter, Ranks, local_of
from ._lists import is_one, require_no_item, sent_tensors, without_tensors
from ._model import Memories, buffers, extra_states, modules, parameters
from ._moving import Published, Target
from ._optimizers import Optimized, Optimizers, list_of, optimized
from ._places import Places
from ._values import is_same

Part = tuple[TensorKey, Local]
"""A tensor's key, and this rank's part of it."""


Absences = Callable[[TensorKey, bool, bool], Absent]
"""What to do where no source has a tensor, given its key, whether parameters share the state, and whether it is a scalar."""


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Meanwhile Python looks for no garbage: with 100,000 parameters that takes longer than to make the objects, which all stay."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a model and its optimizers consist of."""

    modules: list[tuple[str, nn.Module]]
    parameters: list[Parameter]
    optimized: list[Optimized]

    def entries(self, ranks: Ranks) -> Entries:
        """Parameters and persistent buffers, each under one of its names."""
        entries = Entries()
        for one in self.parameters:
            entries.add(TensorKey(one.fqn, PARAM), one.local, one.aliases)
        for (fqn, *aliases), buffer in buffers(self.modules):
            entries.add(TensorKey(fqn, BUFFER), local_of(buffer, ranks), aliases)
        return entries


def parts_of(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], ranks: Ranks) -> Parts:
    named = modules(model)
    found = parameters(named, ranks)
    return Parts(named, found, optimized(found, optimizers))


def entries_of(model: nn.Module, ranks: Ranks) -> Entries:
    """The parameters and persistent buffers of a model, each under one of its names.

    The `source` of a parameter's part is the tensor under which optimizers keep its state.
    """
    parts = parts_of(model, [], ranks)
    entries = parts.entries(ranks)
    for one in parts.parameters:
        entries.tensors[TensorKey(one.fqn, PARAM)] = dataclasses.replace(one.local, source=one.key)
    return entries


class ModelCatalog(Target):
    """The tensors of a model and its optimizers on this rank, with a catalog of their memory.

    A publishing catalog names memory alone, and is no target. A wanting one, which has `published` and `absent`, has memory of its
    own for states that several parameters share, because no two wanted tensors may share memory: see `shared`.
    """

    def __init__(self, parts: Parts, optimizers: Sequence[torch.optim.Optimizer], ranks: Ranks, published: Published | None = None,
                 absent: Absences | None = None) -> None:
        self.ranks = ranks
        self.parameters, self.optimized = parts.parameters, parts.optimized
        self.group_keys = [TensorKey(one.parameter.fqn, GROUP) for one in self.optimized]
        self.values: dict[TensorKey, Any] = {}  # states that are no tensors
        self._with_tensors: set[TensorKey] = set()  # those of them whose tensors are in the catalog
        # A state, and the key under which a parameter that shares it receives its own.
        self.shared: list[tuple[torch.Tensor, TensorKey]] = []
        # Tensors of one memory, of a wanting catalog, which names only the first.
        self.twins: list[tuple[Part, Part]] = []
        # States that are tensors of others, of a publishing catalog.
        self.ties: list[tuple[TensorKey, TensorKey]] = []
        self._absent = absent
        self._absences: dict[TensorKey, Absent] = {}
        self._memories = Memories()
        self._published: dict[TensorKey, Any] = {}
        self._sources: list[torch.Tensor] = []
        with torch.no_grad():
            of_model = parts.entries(ranks)
            self._entries = Entries(aliases=of_model.aliases)
            for key, local in of_model.tensors.items():
                self._add(key, local)
            for one in self.optimized:
                for name, value in one.state.items():
                    if "[" in name:
                        require_no_item(one, name)
                    self._add_state(one, name, value)
            # Work on the device that has to end before the memory is read or written.
            self._device = next((p.key.device for p in self.parameters if p.key.is_cuda), None)
            self._event: Any = None if self._device is None else torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.record_event()
            self._owner: list[Any] = [self._event]  # the catalog holds it
            super().__init__(self._entries, ranks, published, self._absences, self._owner,
                             0 if self._event is None else self._event.cuda_event)
        self.modules = parts.modules
        self.extra_states = [(TensorKey(fqn, EXTRA), module) for fqn, module in extra_states(parts.modules)]
        self.places = Places([module for _, module in parts.modules], optimizers, self.parameters, self._sources)
        # Python would look through all of them at each search for garbage.
        del self._entries, self._absences, self._memories, self._sources

    def record_event(self) -> None:
        """Orders reads and writes of device memory behind the work that is queued now. Before each use of the catalog."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def _add(self, key: TensorKey, local: Local, one: Optimized | None = None) -> None:
        """`one`: of which it is a state."""
        shares = one is not None and one.parameter.shares_state
        tensor = local.tensor
        self._sources.append(local.source)
        if self._absent:
            part = key, local
            # Members of a flat parameter share its tensor, and have other places in it.
            if local.source is tensor or is_dtensor(local.source):
                first = self._memories.first(tensor, part)
                if first is not part:
                    self.twins.append((first, part))
                    return
            self._absences[key] = self._absent(key, shares, local.shape == ())
        elif one is not None and not shares:
            first = self._memories.first(tensor, key)
            if first is not key:
                self.ties.append((key, first))
        self._entries.add(key, local)

    def _add_state(self, one: Optimized, name: str, value: Any) -> None:
        fqn = one.parameter.fqn
        if name in (PARAM, GROUP):
            raise Unsupported(f"{fqn}: an optimizer keeps a state named '{name}', which is taken: rename it")
        if not is_one(value):
            tensors = sent_tensors(one, name, value)
            self.values[TensorKey(fqn, name)] = value
            if tensors:
                self._with_tensors.add(TensorKey(fqn, name))
            for item, tensor in tensors.items():
                self._add_state(one, item, tensor)
        elif value.dim() == 0 and self._absent and one.parameter.shares_state:
            scalar = torch.empty_like(value)
            self.shared.append((value, TensorKey(fqn, name)))
            self._add(TensorKey(fqn, name), Local((), REPLICATED, scalar, scalar), one)
        else:
            try:
                local = one.local(value)
            except Error as error:
                raise type(error)(f"{fqn}:{name}: {error}", error.gaps, error.ranks, error.report) from None
            if local is not None:
                self._add(TensorKey(fqn, name), local, one)

    def storages(self) -> set[int]:
        """Addresses of the memory that the catalog names."""
        return {one.data_ptr() for one in self._owner if isinstance(one, torch.UntypedStorage)}

    def present_values(self) -> dict[TensorKey, Any]:
        """States that are no tensors, as they are now, without tensors that are in the catalog."""
        return {key: without_tensors(value) if key in self._with_tensors else value for key, value in self.values.items()}

    def set_values(self, values: dict[TensorKey, Any]) -> None:
        """Adds values to the catalog, or replaces those that differ."""
        each_object(self.catalog.add_values, (one for one in values.items() if one[0] not in self._published))
        changed: list[tuple[TensorKey, Any]] = []
        alike: dict[tuple[int, int], bool] = {}
        for key, value in values.items():
            before = self._published.get(key, value)
            pair = id(before), id(value)
            if pair not in alike:
                alike[pair] = is_same(before, value)
            if not alike[pair]:
                changed.append((key, value))
        each_object(self.catalog.set_values, changed)
        self._published = values


class Catalogs:
    """The catalogs of one model and its optimizers, each kept for the next call while it is right."""

    _MOST = 6  # calls that differ in ranks, in names of values, or in what the sources have, have one each

    def __init__(self, model: nn.Module, optimizers: Optimizers) -> None:
        self.model, self.given = model, optimizers
        self._kept: dict[Any, ModelCatalog] = {}

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that keep state on this rank now."""
        return list_of(self.given)

    def kept(self, ranks: Ranks, key: Any) -> ModelCatalog | None:
        """The catalog of an earlier call if it is still right. `key` tells catalogs apart that are changed by their users."""
        known = self._kept.get((ranks.key, key))
        if known is None or not known.places.hold(self.optimizers):
            return None
        known.record_event()
        return known

    def keep(self, key: Any, made: ModelCatalog) -> ModelCatalog:
        """For the next call."""
        listed = self.optimizers
        self._kept = {name: one for name, one in self._kept.items() if one.places.hold(listed)}
        if len(self._kept) >= self._MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[made.ranks.key, key] = made
        return made

    def publishing(self, ranks: Ranks, key: Any) -> ModelCatalog:
        """The kept catalog, or a new one."""
        listed = self.optimizers
        return self.kept(ranks, key) or self.keep(key, ModelCatalog(parts_of(self.model, listed, ranks), listed, ranks))
