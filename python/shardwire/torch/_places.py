# SPDX-License-Identifier: Apache-2.0
"""Where a model and its optimizers keep their tensors, and whether they still keep them there."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Iterable, Sequence

import torch
from torch import nn

from ._dtensor import is_dtensor
from ._fsdp1 import is_flat, shard_of
from ._lists import lists_in
from ._model import Parameter

_children_of = operator.attrgetter("_modules")
_state_of = operator.attrgetter("state")
_groups_of = operator.attrgetter("param_groups")
_params_of = operator.itemgetter("params")
_local_of = operator.attrgetter("_local_tensor")


def _all(containers: Iterable[Any]) -> list[Any]:
    """What several containers hold, one after another; of dicts the values."""
    return list(itertools.chain.from_iterable(containers))


def _same(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(map(operator.is_, now, then))


class Places:
    """The objects and addresses at which a catalog found its tensors.

    The catalog is right while these are what they were, in this order: the modules below the model; the parameters and
    buffers that they, or wrappers, have; groups and states of the optimizers; the address of each tensor. Nothing else leads
    from a model to memory. Equal addresses mean equal memory, because the catalog keeps the memory that it names alive.
    """

    def __init__(self, modules: list[nn.Module], optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[Parameter],
                 sources: Sequence[torch.Tensor]) -> None:
        self._modules = modules
        self._children = self._present_children()
        self._registries = [registry for module in modules for registry in (module._parameters, module._buffers)]
        self._counts = list(map(len, self._registries))
        places = [place for parameter in parameters for place in parameter.places]
        places += [(module._buffers, name) for module in modules if module._buffers for name in module._buffers
                   if name not in module._non_persistent_buffers_set]
        self._registered_in = [place for place, _ in places]
        self._names = [name for _, name in places]
        self._registered = [place[name] for place, name in places]
        self._wrapped = [parameter.key for parameter in parameters if parameter.now is not None]
        self._now = [parameter.now for parameter in parameters if parameter.now is not None]
        self._optimizers = list(optimizers)
        self._groups, self._optimized = self._present_groups(optimizers)
        self._states, self._values = self._present_states(optimizers)
        self._lists = lists_in(self._values)
        self._items = _all(self._lists)
        self._plain: list[torch.Tensor] = []
        self._dtensors: list[torch.Tensor] = []
        flats: dict[int, torch.Tensor] = {}
        for source in sources:
            if type(source) is torch.Tensor:
                self._plain.append(source)
            elif is_dtensor(source):
                self._dtensors.append(source)
            elif is_flat(source):
                flats[id(source)] = source
            else:
                self._plain.append(source)
        self._flats = list(flats.values())
        self._pointers = self._present_pointers()

    def _present_children(self) -> list[Any]:
        return _all(map(dict.values, map(_children_of, self._modules)))

    def _present_groups(self, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[list[Any], list[Any]]:
        groups = _all(map(_groups_of, optimizers))
        return groups, _all(map(_params_of, groups))

    def _present_states(self, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[list[Any], list[Any]]:
        states = _all(map(dict.values, map(_state_of, optimizers)))
        return states, _all(state.values() if isinstance(state, dict) else (state,) for state in states)

    def _present_pointers(self) -> list[int]:
        pointers = list(map(torch.Tensor.data_ptr, self._plain))
        pointers.extend(map(torch.Tensor.data_ptr, map(_local_of, self._dtensors)))
        pointers.extend(shard_of(flat).data_ptr() for flat in self._flats)
        return pointers

    def hold(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """Whether all tensors are still where they were. `optimizers`: those of the model at present."""
        if not _same(list(optimizers), self._optimizers):
            return False
        groups, optimized = self._present_groups(optimizers)
        states, values = self._present_states(optimizers)
        return (_same(self._present_children(), self._children) and list(map(len, self._registries)) == self._counts
                and _same(list(map(dict.get, self._registered_in, self._names)), self._registered)
                and _same([now() for now in self._now], self._wrapped)
                and _same(groups, self._groups) and _same(optimized, self._optimized)
                and _same(states, self._states) and _same(values, self._values) and _same(_all(self._lists), self._items)
                and self._present_pointers() == self._pointers)
