# SPDX-License-Identifier: Apache-2.0
"""Tensors that are one in the sources: states of optimizers, and those that travel by value in their state, options or extra states."""

from __future__ import annotations

import copy
import json
from typing import Any, Callable, Iterable, Iterator

import torch

from .. import TensorKey

STATES, VALUES = "optimizer_tie/", "value_tie/"
# Prefixes of the names under which ties are published, of states that travel as tensors and of tensors within values.

Path = tuple[Any, ...]
"""Of a tensor: name and state under which it, or the value that has it, is published, then its places in lists and dicts."""


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
            yield tie_name(VALUES, path, other)


def tie_name(kind: str, path: Path, other: Path) -> str:
    """Under which is published that a tensor is another one."""
    return kind + json.dumps([path, other])


def ties_in(published: Iterable[TensorKey], kind: str) -> list[tuple[Path, Path]]:
    """The two tensors of each published tie."""
    names = (key.state.removeprefix(kind) for key in published if key.fqn == "" and key.state.startswith(kind))
    return [(tuple(path), tuple(other)) for path, other in map(json.loads, names)]


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
