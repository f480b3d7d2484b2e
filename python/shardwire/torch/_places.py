# SPDX-License-Identifier: Apache-2.0
"""Where a model and its optimizers keep their tensors, and whether they still keep them there."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Iterable, Iterator, Sequence

import torch
from torch import nn

from ._dtensor import is_dtensor
from ._fsdp1 import is_flat, shard_of
from ._layouts import Parameter
from ._lists import is_list, tensors_at

_children_of = operator.attrgetter("_modules")
_state_of = operator.attrgetter("state")
_groups_of = operator.attrgetter("param_groups")
_params_of = operator.itemgetter("params")
_local_of = operator.attrgetter("_local_tensor")
_strides_of: Any = torch.Tensor.stride  # several signatures


def _all(containers: Iterable[Any]) -> list[Any]:
    """What several containers hold, one after another; of dicts the keys."""
    return list(itertools.chain.from_iterable(containers))


class Places:
    """The objects and addresses at which a catalog found its tensors.

    The catalog is right while these are what they were, under these names and in this order: the modules below the model; the
    parameters and buffers that they, or wrappers, have; groups and states of the optimizers; address, size and strides of each
    tensor. Nothing else leads from a model to memory. Equal addresses mean equal memory, because the catalog keeps the memory that
    it names alive.
    """

    def __init__(self, modules: list[nn.Module], optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[Parameter],
                 sources: Sequence[torch.Tensor]) -> None:
        self._modules = modules
        self._registries: list[Any] = [registry for module in modules for registry in (
            module._parameters, module._buffers, module._non_persistent_buffers_set)]
        places = [place for parameter in parameters for place in parameter.places]
        places += [(module._parameters, name) for module in modules for name, one in module._parameters.items() if one is None]
        places += [(module._buffers, name) for module in modules if module._buffers for name in module._buffers
                   if name not in module._non_persistent_buffers_set]
        self._registered_in = [place for place, _ in places]
        self._names = [name for _, name in places]
        self._now = [parameter.now for parameter in parameters if parameter.now is not None]
        self._plain: list[torch.Tensor] = []
        self._dtensors: list[torch.Tensor] = []
        flats: dict[int, torch.Tensor] = {}
        for source in sources:
            if type(source) is not torch.Tensor and is_dtensor(source):
                self._dtensors.append(source)
            elif type(source) is not torch.Tensor and is_flat(source):
                flats[id(source)] = source
            else:
                self._plain.append(source)
        self._flats = list(flats.values())
        # Equal values are equal lists, whose items may be others.
        self._lists = [value for value in _all(map(dict.values, self._dicts(optimizers))) if type(value) is not torch.Tensor
                       and is_list(value)]
        self._counts, self._objects = self._present(optimizers, [parameter.key for parameter in parameters if parameter.now is not None])
        self._pointers = self._present_pointers()
        known: dict[Any, Any] = {}  # most tensors have those of others
        self._strides = [known.setdefault(strides, strides) for strides in map(_strides_of, self._tensors())]

    def _dicts(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[Any]:
        """The children of all modules, the states of all optimizers, and the state of each parameter."""
        states = list(map(_state_of, optimizers))
        return [*map(_children_of, self._modules), *states, *(one for one in _all(map(dict.values, states)) if isinstance(one, dict))]

    def _present(self, optimizers: Sequence[torch.optim.Optimizer], wrapped: list[Any]) -> tuple[list[Any], list[Any]]:
        """Sizes and names, to be compared by value, and objects, to be compared by identity."""
        groups = _all(map(_groups_of, optimizers))
        optimized, dicts = list(map(_params_of, groups)), self._dicts(optimizers)
        inside = [place for value in self._lists for place in tensors_at(value)]
        counts = [*map(len, self._registries), *map(len, optimized), *map(len, dicts), *(name for name, _ in inside)]
        return counts, [*optimizers, *map(dict.get, self._registered_in, self._names), *wrapped, *groups, *_all(optimized), *_all(dicts),
                        *_all(map(dict.values, dicts)), *(tensor for _, tensor in inside)]

    def _tensors(self) -> Iterator[torch.Tensor]:
        return itertools.chain(self._plain, map(_local_of, self._dtensors))

    def _present_pointers(self) -> list[int]:
        return [*map(torch.Tensor.data_ptr, self._tensors()), *map(torch.Tensor.numel, self._tensors()),
                *(shard_of(flat).data_ptr() for flat in self._flats)]

    def hold(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """Whether all tensors are still where they were. `optimizers`: those of the model at present."""
        counts, objects = self._present(optimizers, [now() for now in self._now])
        return (counts == self._counts and len(objects) == len(self._objects) and all(map(operator.is_, objects, self._objects))
                and self._present_pointers() == self._pointers
                and all(map(operator.eq, map(_strides_of, self._tensors()), self._strides)))
