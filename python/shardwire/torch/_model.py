# SPDX-License-Identifier: Apache-2.0
"""The parameters and buffers of a model by fully qualified name, whatever wraps it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import LayoutMismatch, TensorKey, Unsupported
from . import _fsdp1, _fsdp2
from ._dtensor import is_dtensor
from ._layouts import Parameter, Ranks, local_of, state_like


# Attributes under which wrappers keep the module that they wrap.
_WRAPPED = {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"}

# What knows parameters that a module does not register as they are: (id of the module, name) to a parameter without name.
_WRAPPERS: list[Callable[[Iterable[nn.Module], Ranks], dict[tuple[int, str], Parameter]]] = [_fsdp1.parameters, _fsdp2.parameters]


def is_wrapped(parent: nn.Module, name: str) -> bool:
    return name in _WRAPPED or name == "module" and isinstance(
        parent, (nn.parallel.DistributedDataParallel, nn.DataParallel))


def modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All modules with the prefix of their names, as the model without wrappers has them. Shared ones come repeatedly."""
    left, found = [("", model)], []
    while left:
        prefix, module = left.pop()
        found.append((prefix, module))
        if module._modules:
            left.extend((prefix if is_wrapped(module, name) else f"{prefix}{name}.", child)
                        for name, child in reversed(module._modules.items()) if child is not None)
    return found


def parameters(named: Sequence[tuple[str, nn.Module]], ranks: Ranks) -> list[Parameter]:
    """In the order of their modules, each once. `named`: as modules() gives them."""
    wrapped: dict[int, dict[str, Parameter]] = {}
    for find in _WRAPPERS:
        for (module_id, name), one in find([module for _, module in named], ranks).items():
            wrapped.setdefault(module_id, {})[name] = one
    by_identity: dict[object, Parameter] = {}
    nothing: dict[str, Parameter] = {}
    whole = functools.partial(local_of, ranks=ranks)
    for prefix, module in named:
        special = wrapped.get(id(module), nothing)
        if not special and not module._parameters:
            continue
        for name in (dict.fromkeys([*module._parameters, *special]) if special else module._parameters):
            fqn = prefix + name
            tensor = module._parameters.get(name)
            identity = special[name].identity if name in special else id(tensor)
            known = by_identity.get(identity)
            if known is not None:
                if fqn != known.fqn and fqn not in known.aliases:
                    known.aliases += (fqn,)
            elif name in special:
                known = by_identity[identity] = dataclasses.replace(special[name], fqn=fqn)
            elif tensor is None or _fsdp1.is_flat(tensor):
                continue
            else:
                local = local_of(tensor, ranks)
                known = by_identity[identity] = Parameter(fqn, local, tensor, state_like(local, ranks) if is_dtensor(tensor) else whole)
            if name not in special:
                known.places += ((module._parameters, name),)
    return list(by_identity.values())


def buffers(named: Sequence[tuple[str, nn.Module]]) -> list[tuple[list[str], torch.Tensor]]:
    """Persistent buffers, each once, with all their names."""
    found: dict[int, tuple[list[str], torch.Tensor]] = {}
    for prefix, module in named:
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                names = found.setdefault(id(buffer), ([], buffer))[0]
                if prefix + name not in names:
                    names.append(prefix + name)
    return list(found.values())


def extra_states(named: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Modules that keep state beside tensors, by the names that state_dict() gives it: see nn.Module.get_extra_state()."""
    return [(f"{prefix}_extra_state", module) for prefix, module in named
            if type(module).get_extra_state is not nn.Module.get_extra_state]


def reshard(model: nn.Module) -> None:
    """Frees gathered copies of parameters, which would hide what is written into the shards."""
    _fsdp1.reshard(model)
    _fsdp2.reshard(model)


PLAIN = (torch.Tensor, nn.Parameter)


def text_of(key: TensorKey) -> str:
    return f"{key.fqn}:{key.state}" if key.state else key.fqn


def memory_of(key: TensorKey, tensor: torch.Tensor) -> torch.UntypedStorage:
    """Keeps the memory of the tensor, also if the tensor is given another.

    Raises LayoutMismatch if it has none, Unsupported if its elements are not what lies there.
    """
    try:
        if type(tensor) not in PLAIN and is_traceable_wrapper_subclass(tensor):
            raise NotImplementedError
        memory = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, nested, made of several others
        raise Unsupported(f"{text_of(key)} is a {type(tensor).__name__} of layout {tensor.layout}, which is no array of elements"
                          ) from None
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported(f"{text_of(key)} is a view that changes the sign of its elements: resolve_conj() and resolve_neg() first")
    if tensor.is_meta or memory.nbytes() == 0 and tensor.numel():
        raise LayoutMismatch(f"{text_of(key)} is on the meta device: it has no memory" if tensor.is_meta else
                             f"the memory of {text_of(key)} has been freed")
    return memory


def _are_one(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Of two tensors at one address: whether they are the same elements."""
    return first is second or (first.dtype == second.dtype and first.shape == second.shape and first.stride() == second.stride()
                               and first.device == second.device)


class Memories:
    """Finds tensors that are the same memory as others. Keeps them all."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[torch.Tensor, Any]] = {}
        self._more: dict[int, list[tuple[torch.Tensor, Any]]] = {}

    def first(self, tensor: torch.Tensor, name: Any) -> Any:
        """The name of the first tensor of this memory: `name` if it is this one."""
        this = tensor, name
        # Without elements it has no address. memory_of() refuses other layouts.
        address = (tensor.data_ptr() if tensor.layout is torch.strided else 0) or id(tensor)
        known = self._first.setdefault(address, this)
        if known is this:
            return name
        more = self._more.setdefault(address, [])
        for other, first in (known, *more):
            if _are_one(other, tensor):
                return first
        more.append(this)
        return name


def synchronize(tensors: Iterable[torch.Tensor]) -> None:
    """Ends queued work on devices, whose results are read or overwritten next."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.synchronize(device)
