# SPDX-License-Identifier: Apache-2.0
"""States that optimizers quantize by blocks, as those of torchao do: codes and scales are tensors with names of their own."""

from __future__ import annotations

import math
import sys
from typing import Any, Mapping, Sequence, cast

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.distributed.tensor.placement_types import Replicate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import LayoutMismatch, Unsupported
from ._dtensor import is_dtensor, local_tensor
from ._values import Quantized

_CODES, _SCALE, _TABLE = "codes", "scale", "qmap"
_NAMES = {_CODES, _SCALE, _TABLE}


def _local(thing: Any) -> Any:
    return local_tensor(thing) if is_dtensor(thing) else thing


def _attribute(item: str) -> str:
    """`codes` of `state[codes]`; nothing of a state that has such a name itself."""
    _, bracket, name = item.rpartition("[")
    return name.removesuffix("]") if bracket else ""


class Parts(dict[str, torch.Tensor]):
    """The tensors of a quantized one by name, which share its memory."""

    def __init__(self, whole: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.whole = whole


def inside(thing: torch.Tensor) -> list[torch.Tensor]:
    """The present tensors of a quantized one."""
    local = _local(thing)
    return [getattr(local, name) for name in local.__tensor_flatten__()[0]]


def is_quantized(thing: Any) -> bool:
    if type(thing) is torch.Tensor:
        return False
    local = _local(thing)
    if type(local) is torch.Tensor or not isinstance(local, torch.Tensor) or not is_traceable_wrapper_subclass(local):
        return False
    names, _ = local.__tensor_flatten__()
    return {_CODES, _SCALE} <= set(names) <= _NAMES and local.codes.shape == local.shape


def quantized(thing: torch.Tensor) -> Quantized:
    """What it is beside its tensors."""
    local = _local(thing)
    context = local.__tensor_flatten__()[1]
    return Quantized(f"{type(local).__module__}.{type(local).__qualname__}", tuple(context or ()))


def _shape_of_blocks(name: str, whole: torch.Tensor, block: int) -> tuple[int, ...]:
    """The global shape of what there is one of for each block. Raises Unsupported if a block has elements of two shards.

    Blocks are counted within a row wherever a row consists of whole blocks, so that the rows of both are sharded alike.
    """
    shape = tuple(whole.shape)
    by_row = len(shape) > 1 and math.prod(shape[1:]) % block == 0
    out = (shape[0], math.prod(shape[1:]) // block) if by_row else (whole.numel() // block,)
    sharded = [(dim, placement) for dim, placement in enumerate(whole.placements) if not placement.is_replicate()] if (
        isinstance(whole, DTensor)) else []
    for mesh_dim, placement in sharded:
        if by_row and getattr(placement, "dim", None) == 0:
            continue
        divided = len(out) - 1 == getattr(placement, "dim", None) and len(shape) == len(out) and len(sharded) == 1
        part = -(-shape[-1] // cast(DTensor, whole).device_mesh.size(mesh_dim))
        if not placement.is_shard() or not divided or part % block:
            raise Unsupported(f"{name} is quantized by blocks of {block} elements, and is {placement!r} with a shape of {shape}: "
                              "its blocks do not end where its shards do")
    return out


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1:]) for dim in range(len(shape)))


def parts(name: str, thing: torch.Tensor) -> Parts:
    """The tensors of a quantized state, sharded as it is."""
    local = _local(thing)
    found: dict[str, torch.Tensor] = {}
    for attribute in local.__tensor_flatten__()[0]:
        tensor: torch.Tensor = getattr(local, attribute)
        placements: Any = getattr(thing, "placements", None)
        if attribute == _TABLE:
            shape, placements = tuple(tensor.shape), placements and [Replicate()] * len(placements)
        elif attribute == _CODES:
            shape = tuple(thing.shape)
        else:
            shape = _shape_of_blocks(name, thing, local.numel() // max(tensor.numel(), 1))
            tensor = tensor.view(local.shape[0], -1) if len(shape) > 1 else tensor
        if isinstance(thing, DTensor):
            tensor = DTensor.from_local(tensor, thing.device_mesh, placements, run_check=False, shape=torch.Size(shape),
                                        stride=_strides(shape))
        found[f"{name}[{attribute}]"] = tensor
    return Parts(thing, found)


def new_part(name: str, dtype: torch.dtype, shape: tuple[int, ...], parameter: torch.Tensor) -> torch.Tensor | None:
    """A tensor for an item of this name of a quantized state; None if no such state has an item of the name."""
    attribute = _attribute(name)
    if attribute not in _NAMES:
        return None
    if not isinstance(parameter, DTensor):
        return torch.empty(shape, dtype=dtype, device=parameter.device)
    placements = [Replicate()] * len(parameter.placements) if attribute == _TABLE else parameter.placements
    return empty_dtensor(*shape, dtype=dtype, device_mesh=parameter.device_mesh, placements=placements)


def whole(name: str, sent: Quantized, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The quantized state of these tensors: the one that is there, or a new one. Raises LayoutMismatch if it would be another."""
    if isinstance(tensors, Parts):
        if quantized(tensors.whole) != sent:
            raise LayoutMismatch(f"{name}: source has {sent}, target wants {quantized(tensors.whole)}")
        return tensors.whole
    module, _, kind = sent.kind.rpartition(".")
    # Only what this process has loaded itself: a name that was received imports nothing.
    made = getattr(sys.modules.get(module), kind, None)
    if not (isinstance(made, type) and issubclass(made, torch.Tensor) and hasattr(made, "__tensor_unflatten__")):
        raise Unsupported(f"{name}: source has a {sent.kind}, which is not known here: import {module} before the restore")
    by_name = {_attribute(item): tensor for item, tensor in tensors.items()}
    codes = by_name[_CODES]
    local = {attribute: _local(tensor) for attribute, tensor in by_name.items()}
    local[_SCALE] = local[_SCALE].view(-1)
    out = made.__tensor_unflatten__(local, list(sent.context), local[_CODES].shape, local[_CODES].stride())
    if isinstance(codes, DTensor):
        out = DTensor.from_local(out, codes.device_mesh, codes.placements, run_check=False, shape=codes.shape, stride=codes.stride())
    return cast(torch.Tensor, out)
