# SPDX-License-Identifier: Apache-2.0
"""The parameters and buffers of a model by fully qualified name, whatever wraps it."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator

import torch
from torch import nn

from .. import LayoutMismatch, Unsupported
from . import _dtensor, _fsdp1, _fsdp2
from ._layouts import Local, Ranks, local_of

State = Callable[[torch.Tensor], "Local | None"]


@dataclasses.dataclass(slots=True, eq=False)
class Parameter:
    """One parameter. Several names of one tensor are one parameter."""

    fqn: str
    local: Local
    key: torch.Tensor
    """The tensor under which optimizers keep its state."""
    state: State
    """The local part of a state tensor of more than one element; None if it has none of this parameter's elements."""
    shares_state: bool = False
    """Whether other parameters have the same state tensors."""
    aliases: list[str] = dataclasses.field(default_factory=list)


# Attributes under which wrappers keep the module that they wrap.
_WRAPPED = {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"}

# What knows parameters that a module does not register as they are: (id of the module, name) to a parameter without name.
_WRAPPERS: list[Callable[[nn.Module, Ranks], dict[tuple[int, str], Any]]] = [_fsdp1.parameters, _fsdp2.parameters]


def _is_wrapped(parent: nn.Module, name: str) -> bool:
    return name in _WRAPPED or name == "module" and isinstance(
        parent, (nn.parallel.DistributedDataParallel, nn.DataParallel))


def modules(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All modules with the prefix of their names, as the model without wrappers has them. Shared ones come repeatedly."""
    yield prefix, model
    for name, child in model._modules.items():
        if child is not None:
            yield from modules(child, prefix if _is_wrapped(model, name) else f"{prefix}{name}.")


def _plain_state(local: Local, ranks: Ranks, strided_first: bool | None) -> State:
    def state(tensor: torch.Tensor) -> Local | None:
        if _dtensor.is_dtensor(tensor) or local.layout.kind == "replicated":
            return local_of(tensor, ranks, strided_first)
        if tensor.shape == local.tensor.shape:  # a plain tensor beside a sharded parameter
            return Local(local.shape, local.layout, tensor.detach())
        raise Unsupported(f"a state of shape {tuple(tensor.shape)} says nothing of its layout")

    return state


def parameters(model: nn.Module, ranks: Ranks) -> list[Parameter]:
    """In the order of their modules, each once."""
    wrapped: dict[tuple[int, str], Any] = {}
    for find in _WRAPPERS:
        wrapped.update(find(model, ranks))
    by_key: dict[Any, Parameter] = {}
    for prefix, module in modules(model):
        names = dict.fromkeys(module._parameters)
        names.update(dict.fromkeys(name for owner, name in wrapped if owner == id(module)))
        for name in names:
            fqn = prefix + name
            special = wrapped.get((id(module), name))
            tensor = module._parameters.get(name)
            if special is not None:
                identity, local, key, state, shares = special
            elif tensor is None or _fsdp1.is_flat(tensor):
                continue
            else:
                local = local_of(tensor, ranks)
                identity, key, state, shares = id(tensor), tensor, _plain_state(local, ranks, None), False
            known = by_key.get(identity)
            if known is None:
                by_key[identity] = Parameter(fqn, local, key, state, shares)
            elif fqn != known.fqn and fqn not in known.aliases:
                known.aliases.append(fqn)
    return list(by_key.values())


def buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Persistent buffers, each once."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in modules(model):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found.setdefault(id(buffer), (prefix + name, buffer))
    return list(found.values())


def reshard(model: nn.Module) -> None:
    """Frees gathered copies of parameters, which would hide what is written into the shards."""
    _fsdp1.reshard(model)
    _fsdp2.reshard(model)


def require_memory(what: str, tensor: torch.Tensor) -> None:
    """Raises LayoutMismatch for tensors without memory."""
    if tensor.is_meta:
        raise LayoutMismatch(f"{what} is on the meta device: it has no memory")
    if tensor.numel() and tensor.untyped_storage().nbytes() == 0:
        raise LayoutMismatch(f"the memory of {what} has been freed")
