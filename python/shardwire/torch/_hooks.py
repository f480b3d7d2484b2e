# SPDX-License-Identifier: Apache-2.0
"""State dicts of models and optimizers that have hooks or methods of their own for them."""

from __future__ import annotations

import collections
import functools
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.module import _IncompatibleKeys, _WrappedHook

from .. import LayoutMismatch, Unsupported
from ._dtensor import is_dtensor, local_tensor
from ._model import is_wrapped, reshard

Named = Sequence[tuple[str, nn.Module]]
"""Modules as _model.modules() gives them: the model is the first."""


def _own(hooks: Mapping[int, Any]) -> list[Any]:
    """Those that are not torch's: by these, wrappers gather and rename what this package finds otherwise."""
    return [hook for hook in hooks.values() if not _is_of_torch(hook)] if hooks else []


def _is_of_torch(hook: Any) -> bool:
    while isinstance(hook, (functools.partial, _WrappedHook)):
        hook = hook.func if isinstance(hook, functools.partial) else hook.hook
    return str(getattr(hook, "__module__", "")).startswith("torch.")


def _overrides(thing: Any, *names: str, base: Any = nn.Module, torchs: str = "torch.nn.") -> bool:
    """Whether the class of a thing has methods in place of those of `base`, from elsewhere than the package `torchs`."""
    kind = type(thing)
    return any(getattr(kind, name) is not getattr(base, name) and not getattr(kind, name).__module__.startswith(torchs)
               for name in names)


def _saves(module: nn.Module) -> bool:
    return (bool(_own(module._state_dict_pre_hooks) or _own(module._state_dict_hooks))
            or _overrides(module, "_save_to_state_dict", "state_dict"))


def _changes_loaded(module: nn.Module) -> bool:
    return bool(_own(module._load_state_dict_pre_hooks)) or _overrides(module, "_load_from_state_dict")


def loads(named: Named) -> bool:
    """Whether loading a state dict runs code of the model."""
    return _overrides(named[0][1], "load_state_dict") or any(
        _changes_loaded(module) or _own(module._load_state_dict_post_hooks) for _, module in named)


def _require_parameters(named: Named) -> None:
    if any(isinstance(module, FullyShardedDataParallel) for _, module in named):
        fqn, kind = next((prefix[:-1], type(module).__name__) for prefix, module in named if _saves(module) or loads([(prefix, module)]))
        raise Unsupported(f"module '{fqn}' ({kind}) has hooks or methods for state dicts, which take whole parameters; FSDP1 has flat ones")


def _tensors(named: Named) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by all their names."""
    return {prefix + name: tensor for prefix, module in named for name, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None and name not in module._non_persistent_buffers_set}


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    local = local_tensor(tensor) if is_dtensor(tensor) else tensor
    try:
        return local.data_ptr(), local.dtype, local.shape, local.stride()
    except (NotImplementedError, RuntimeError):  # refused where it is added to a catalog
        return (id(tensor),)


def saved(named: Named) -> dict[str, Any] | None:
    """The model's state dict, under names without wrappers. None if no code of the model takes part in it."""
    if not any(_saves(module) for _, module in named):
        return None
    _require_parameters(named)
    root = named[0][1]
    reshard(root)
    if _overrides(root, "state_dict"):
        return root.state_dict()
    state: Any = collections.OrderedDict()
    state._metadata = collections.OrderedDict()
    return _save(root, "", state)


def _save(module: nn.Module, prefix: str, state: Any) -> dict[str, Any]:
    """As nn.Module.state_dict() does."""
    if _overrides(module, "state_dict"):
        return module.state_dict(destination=state, prefix=prefix)
    metadata = state._metadata[prefix[:-1]] = {"version": module._version}
    for hook in _own(module._state_dict_pre_hooks):
        hook(module, prefix, False)
    module._save_to_state_dict(state, prefix, False)
    for name, child in module._modules.items():
        if child is not None:
            _save(child, prefix if is_wrapped(module, name) else f"{prefix}{name}.", state)
    for hook in _own(module._state_dict_hooks):
        changed = hook(module, state, prefix, metadata)
        state = state if changed is None else changed
    return state  # type: ignore[no-any-return]


_KEY, _METADATA = "state_dict/", "state_dict_metadata/"
# Prefixes of what hooks made of a key, and of what they know of a module.


def changes(named: Named, state: Mapping[str, Any] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """How a state dict differs from tensors and extra states of the model, by the names under which that is published.

    A key has the tensor of another name, or a value, or is missing. Raises Unsupported if a tensor has no key at all.
    """
    for prefix, module in named:
        metadata = getattr(state, "_metadata", {}).get(prefix[:-1], {"version": module._version})
        if metadata != {"version": 1} and (_saves(module) or loads([(prefix, module)])):
            yield _METADATA + prefix, metadata
    if state is None:
        return
    own = _tensors(named)
    at = {_memory(tensor): name for name, tensor in reversed(own.items())}
    found = set()
    for key, value in state.items():
        if key.endswith("_extra_state"):
            continue
        memory = _memory(value) if isinstance(value, torch.Tensor) else None
        found.add(memory)
        if key in own and memory == _memory(own[key]):
            continue
        if memory not in at and is_dtensor(value):
            raise Unsupported(f"{key}: a hook of state_dict() makes another DTensor of it, which is no parameter")
        yield _KEY + key, {"of": at[memory]} if memory in at else {"value": value}
    for name, tensor in own.items():
        if name not in state:
            if _memory(tensor) not in found:
                raise Unsupported(f"{name}: a hook or method for state_dict() leaves it out")
            yield _KEY + name, {}


def _changed(received: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What changes() gave, by keys."""
    return {name[len(_KEY):]: change for name, change in received.items() if name.startswith(_KEY)}


def loader(named: Named, received: Mapping[str, Any], extra: Mapping[str, tuple[nn.Module, Any]]) -> Callable[[], object]:
    """What loads the sources' changes and extra states, by key, into a model whose tensors have arrived.

    Raises Unsupported if the hooks of the model cannot be given a state dict, LayoutMismatch if the sources' lack a key, and no hook
    here knows why.
    """
    changed = _changed(received)
    if loads(named):
        _require_parameters(named)
    elif not changed:
        return lambda: _set_extra_states(extra.values())
    own = _tensors(named)
    for key, change in changed.items():
        if key in own and not change and not any(
                _own(module._load_state_dict_post_hooks) or _changes_loaded(module) and key.startswith(prefix)
                for prefix, module in named) and not _overrides(named[0][1], "load_state_dict"):
            raise LayoutMismatch(f"{key}: hooks of state_dict() of the sources leave it out, and no hook here loads without it")
    return lambda: _load_all(named, received, {key: state for key, (_, state) in extra.items()})


def _set_extra_states(extra: Iterable[tuple[nn.Module, Any]]) -> None:
    for module, state in extra:
        module.set_extra_state(state)


def _load_all(named: Named, received: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Loads what lies in the model's tensors, with the sources' changes, through the hooks and methods of its modules.

    These get copies, as they may exchange one tensor for another.
    """
    own, root = _tensors(named), named[0][1]
    changing = tuple(prefix for prefix, module in named if _changes_loaded(module))
    overrides = _overrides(root, "load_state_dict")
    changed = _changed(received)
    # What one key overwrites, another may still have to be loaded from.
    overwritten = {_memory(own[name]) for key, change in changed.items() for name in (key, change.get("of")) if name in own}
    overwritten |= {_memory(tensor) for name, tensor in own.items() if overrides or name.startswith(changing)}
    copies: dict[Any, torch.Tensor] = {}
    state: Any = collections.OrderedDict()
    for name, tensor in own.items():
        state[name] = tensor.detach()
        memory = _memory(tensor)
        if memory in overwritten:
            state[name] = copies[memory] if memory in copies else copies.setdefault(memory, state[name].clone())
    state.update(extra)
    before = dict(state)
    state._metadata = {prefix[:-1]: {"version": module._version} for prefix, module in named}
    for name, change in received.items():
        if name.startswith(_METADATA):
            state._metadata[name[len(_METADATA):-1]] = change
    for key, change in changed.items():
        state.pop(key, None)
        if "value" in change or change.get("of") in before:
            state[key] = change["value"] if "value" in change else before[change["of"]]
    if overrides:
        root.load_state_dict(state)
        return
    keys, errors = _IncompatibleKeys([], []), []  # type: ignore[var-annotated]
    _load(root, "", state, state._metadata, keys, errors)
    errors += [f"{key} is missing" for key in keys.missing_keys if key in own]
    if errors:
        raise RuntimeError(f"after the hooks of load_state_dict(): {'; '.join(errors)}")


def _load(module: nn.Module, prefix: str, state: dict[str, Any], metadata: Mapping[str, Any], keys: Any, errors: list[str]) -> None:
    """As nn.Module.load_state_dict() does."""
    wraps = any(is_wrapped(module, name) for name in module._modules)
    # Wrappers rename in the name of torch. They have no tensors.
    for call in _own(module._load_state_dict_pre_hooks) if wraps else [module._load_from_state_dict]:
        call(state, prefix, metadata.get(prefix[:-1], {}), True, keys.missing_keys, keys.unexpected_keys, errors)
    for name, child in module._modules.items():
        if child is not None:
            below = prefix if is_wrapped(module, name) else f"{prefix}{name}."
            _load(child, below, {key: value for key, value in state.items() if key.startswith(below)}, metadata, keys, errors)
    for hook in _own(module._load_state_dict_post_hooks):
        hook(module, keys)


_OPTIMIZER = "optimizer_state_dict/"


def _bare(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state dict that an optimizer without hooks and methods has."""
    plain = object.__new__(torch.optim.Optimizer)
    plain.__dict__.update(state=optimizer.state, param_groups=optimizer.param_groups, _optimizer_state_dict_pre_hooks={},
                          _optimizer_state_dict_post_hooks={})
    return plain.state_dict()


def _is_same(first: Any, second: Any) -> bool:
    if type(first) is dict and type(second) is dict:
        return first.keys() == second.keys() and all(_is_same(value, second[key]) for key, value in first.items())
    if type(first) is list and type(second) is list:
        return len(first) == len(second) and all(map(_is_same, first, second))
    return first is second


def beside_states(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[str, Any]]:
    """What hooks and methods of optimizers add to their state dicts. Raises Unsupported if they change states or groups."""
    for number, optimizer in enumerate(optimizers):
        kind = type(optimizer)
        if not (_own(optimizer._optimizer_state_dict_pre_hooks) or _own(optimizer._optimizer_state_dict_post_hooks)
                or _overrides(optimizer, "state_dict", base=torch.optim.Optimizer, torchs="torch.")):
            continue
        given: dict[str, Any] = optimizer.state_dict()
        for name, value in _bare(optimizer).items():
            if not _is_same(given.get(name), value):
                raise Unsupported(f"a hook or method for state_dict() of optimizer {number} ({kind.__name__}) changes '{name}'")
        for key, value in given.items():
            if key not in ("state", "param_groups"):
                yield f"{_OPTIMIZER}{number}/{key}", value


def is_of_hooks(name: str) -> bool:
    """Whether changes() or beside_states() gave this name."""
    return name.startswith((_KEY, _METADATA, _OPTIMIZER))


def load_optimizer(number: int, optimizer: torch.optim.Optimizer, received: Mapping[str, Any]) -> bool:
    """Loads what an optimizer has, and what the sources' hooks added, through its hooks and methods. False if it has none."""
    if not (_own(optimizer._optimizer_load_state_dict_pre_hooks)
            or _overrides(optimizer, "load_state_dict", base=torch.optim.Optimizer, torchs="torch.")):
        return False
    prefix = f"{_OPTIMIZER}{number}/"
    beside = {name[len(prefix):]: value for name, value in received.items() if name.startswith(prefix)}
    optimizer.load_state_dict({**_bare(optimizer), **beside})
    return True
