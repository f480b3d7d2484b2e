# SPDX-License-Identifier: Apache-2.0
"""Tensors that travel by value and are one tensor in the sources: within the state of an optimizer, its options, or the extra states."""

from __future__ import annotations

import copy
import json
from typing import Any, Callable, Iterable, Iterator

import torch

from .. import TensorKey

_PREFIX = "value_tie/"

Path = tuple[Any, ...]
"""Of a tensor in a value: name and state under which the value is published, then its places in lists and dicts."""


def _items(thing: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Of a list or dict: place, key and item."""
    if isinstance(thing, dict):
        yield from ((repr(key), key, item) for key, item in thing.items())
    elif type(thing) in (list, tuple):
        yield from ((number, number, item) for number, item in enumerate(thing))


def _tensors(thing: Any, path: Path) -> Iterator[tuple[Path, torch.Tensor]]:
    if type(thing) in (torch.Tensor, torch.nn.Parameter):
        yield path, thing
    for place, _, item in _items(thing):
        yield from _tensors(item, (*path, place))


def _memory(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided or not tensor.numel():
        return object()
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()


def ties(values: Iterable[tuple[TensorKey, Any]], tensors: Callable[[], Iterable[tuple[TensorKey, torch.Tensor]]] = list
         ) -> Iterator[str]:
    """The names under which is published that a tensor is another one of these values, or of `tensors`, which travel otherwise."""
    found = [one for key, value in values for one in _tensors(value, tuple(key))]
    first = {_memory(tensor): tuple(key) for key, tensor in tensors()} if found else {}
    for path, tensor in found:
        other = first.setdefault(_memory(tensor), path)
        if other is not path:
            yield _PREFIX + json.dumps([path, other])


def tie_of(name: str) -> tuple[Path, Path] | None:
    """The two tensors of a published tie; None for other names."""
    if not name.startswith(_PREFIX):
        return None
    one, other = json.loads(name[len(_PREFIX):])
    return tuple(one), tuple(other)


def at(thing: Any, places: Path) -> Any:
    """What lies at the places; None if there are none such."""
    if not places:
        return thing
    return next((at(item, places[1:]) for place, _, item in _items(thing) if place == places[0]), None)


def put_at(thing: Any, places: Path, tensor: torch.Tensor) -> Any:
    """The thing, with the tensor at the places."""
    if not places:
        return tensor
    changed = {key: put_at(item, places[1:], tensor) if place == places[0] else item for place, key, item in _items(thing)}
    if not isinstance(thing, dict):
        return type(thing)(changed.values())
    made = copy.copy(thing)  # of its class
    for key, item in changed.items():
        made[key] = item
    return made
