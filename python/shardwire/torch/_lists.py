# SPDX-License-Identifier: Apache-2.0
"""Tensors in lists and in quantized states that optimizers keep of a parameter: states of their own, named like `state[0]`."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import torch

from .. import Unsupported
from ._optimizers import Optimized
from ._quantized import inside, is_quantized, parts, quantized, whole
from ._values import ELSEWHERE, Quantized


class Tensors(dict[str, torch.Tensor]):
    """Stands in an optimizer's state for a list, until its other items are known: its tensors by name."""


def tensors_in(name: str, thing: Any) -> Mapping[str, torch.Tensor]:
    """The tensors in a list or tuple, or in those within it, or of a quantized state, by name."""
    if isinstance(thing, Tensors):
        return thing
    if is_quantized(thing):
        return parts(name, thing)
    found: dict[str, torch.Tensor] = {}
    if type(thing) in (list, tuple):
        for number, item in enumerate(thing):
            at = f"{name}[{number}]"
            found.update({at: item} if isinstance(item, torch.Tensor) else tensors_in(at, item))
    return found


def is_one(thing: Any) -> bool:
    """Whether a state is one tensor."""
    return type(thing) is torch.Tensor or isinstance(thing, torch.Tensor) and not is_quantized(thing)


def tensors_of(name: str, thing: Any) -> Mapping[str, torch.Tensor]:
    """The tensors of a state by name."""
    return {name: thing} if is_one(thing) else tensors_in(name, thing)


def require_no_item(one: Optimized, name: str) -> None:
    """Raises Unsupported if a state is named like an item of another one."""
    for at, character in enumerate(name):
        if character == "[" and name[:at] in one.state:
            raise Unsupported(f"{one.parameter.fqn}: the state '{name}' is named like an item of the list '{name[:at]}'")


def sent_tensors(one: Optimized, name: str, thing: Any) -> Mapping[str, torch.Tensor]:
    """Those that are sent as tensors: none if one of them, by its shape, is no part of the parameter's state."""
    try:
        tensors = tensors_in(name, thing)
    except Unsupported as error:
        raise Unsupported(f"{one.parameter.fqn}:{error}") from None
    for tensor in tensors.values():
        try:
            one.local(tensor)
        except Unsupported:
            return {}
    return tensors


def without_tensors(thing: Any) -> Any:
    """The list with marks in place of its tensors, or what a quantized state is beside them."""
    if is_quantized(thing):
        return quantized(thing)
    if isinstance(thing, torch.Tensor):
        return ELSEWHERE
    return type(thing)(map(without_tensors, thing)) if type(thing) in (list, tuple) else thing


def with_tensors(name: str, thing: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The list with its tensors in place of the marks, or the quantized state of the tensors."""
    if isinstance(thing, Quantized):
        return whole(name, thing, tensors)
    if thing is ELSEWHERE:
        return tensors[name]
    if type(thing) in (list, tuple):
        return type(thing)(with_tensors(f"{name}[{number}]", item, tensors) for number, item in enumerate(thing))
    return thing


def is_list(thing: Any) -> bool:
    """Whether a state may have tensors of its own, and is none."""
    return type(thing) in (list, tuple) or is_quantized(thing)


def tensors_at(thing: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The present tensors in a list, or of a quantized state, with their places. They are the same objects in each call."""
    if type(thing) in (list, tuple):
        for number, item in enumerate(thing):
            yield from tensors_at(item, f"{place}[{number}]")
    elif is_quantized(thing):
        yield from ((place, tensor) for tensor in inside(thing))
    elif isinstance(thing, torch.Tensor):
        yield place, thing
