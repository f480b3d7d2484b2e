# SPDX-License-Identifier: Apache-2.0
"""Tensors and values by name, of which every catalog is made: those of models, of state dicts, and of adapters."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterable, Mapping, Sequence

from .. import Catalog, Error, InvalidArgument, TensorKey
from .._types import Absent
from ._dtypes import name_of
from ._extra import extra_values
from ._layouts import REPLICATED, Local, Ranks
from ._model import memory_of, synchronize, text_of
from ._values import value_of


PARAM, BUFFER, GROUP, EXTRA = "param", "buffer", "param_group", "extra_state"
"""States under which a parameter, a buffer, the options of a parameter's group and the extra state of a module are published."""


@dataclasses.dataclass
class Entries:
    """This rank's parts of tensors, and objects that are equal on all ranks that have them."""

    tensors: dict[TensorKey, Local] = dataclasses.field(default_factory=dict)
    values: dict[TensorKey, Any] = dataclasses.field(default_factory=dict)
    """To be published. Of a restore only the keys count."""
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    """Further names of parameters, each with the name under which its entries are."""

    def add(self, key: TensorKey, local: Local, aliases: Sequence[str] = ()) -> None:
        """Adds a tensor. Raises InvalidArgument if another one has one of its names."""
        if self.tensors.setdefault(key, local) is not local:
            raise InvalidArgument(f"{text_of(key)} is the name of several tensors of this rank")
        for alias in aliases:
            if self.aliases.setdefault(alias, key.fqn) != key.fqn:
                raise InvalidArgument(f"{alias} is a further name of {self.aliases[alias]} and of {key.fqn}")

    def catalog(self, ranks: Ranks, *, absent: Mapping[TensorKey, Absent] | None = None, owner: list[Any] | None = None, event: int = 0
                ) -> Catalog:
        """A catalog of the tensors, which keeps their memory, also if a tensor is given another.

        `absent`: what to do for tensors that no peer has, if it is no error. `owner`: a list that the catalog keeps, and that gets the
        memory. `event`: of the device, to be awaited. Raises as memory_of().
        """
        catalog = Catalog(ranks.own, ranks.count)
        absent = absent or {}
        owner = [] if owner is None else owner
        for key, local in self.tensors.items():
            tensor, layout = local.tensor, local.layout
            owner.append(memory_of(key, tensor))
            try:
                dtype = name_of(tensor.dtype)
            except Error as error:
                raise type(error)(f"{text_of(key)}: {error}") from None
            # A layout of boxes says itself where they lie.
            placed = layout is not REPLICATED and layout.kind == "boxes"
            device = tensor.get_device()
            catalog.add_address(key.fqn, key.state, dtype, local.shape, layout, tensor.data_ptr(),
                                () if placed or tensor.is_contiguous() else tensor.stride(),
                                layout.local_elements(local.shape, ranks.own) if placed else tensor.numel(), owner, device,
                                event if device >= 0 else 0, absent.get(key, "error"))
        for alias, fqn in self.aliases.items():
            catalog.alias(alias, fqn)
        return catalog

    def published_catalog(self, ranks: Ranks, extra: Mapping[str, Any] | None = None) -> Catalog:
        """A catalog of tensors, values and extra state. Waits for the work that is queued on devices."""
        catalog = self.catalog(ranks)
        each_object(catalog.add_values, {**values_of(self.values), **extra_values(extra)}.items())
        synchronize(local.tensor for local in self.tensors.values())
        return catalog


def values_of(objects: Mapping[TensorKey, Any]) -> dict[TensorKey, Any]:
    """The values that stand for objects. An object under several keys, such as the options of a group, becomes one value."""
    made: dict[int, Any] = {}
    for key, thing in objects.items():
        if id(thing) not in made:
            made[id(thing)] = value_of(key.fqn or key.state, thing)
    return {key: made[id(thing)] for key, thing in objects.items()}


def each_object(put: Callable[[list[str], str, Any], object], values: Iterable[tuple[TensorKey, Any]]) -> None:
    """Puts values into a catalog by its `add_values` or `set_values`: options of a group once, under each of its parameters."""
    found: dict[tuple[str, int], tuple[list[str], Any]] = {}
    for key, value in values:
        found.setdefault((key.state, id(value)), ([], value))[0].append(key.fqn)
    for (state, _), (fqns, value) in found.items():
        put(fqns, state, value)
