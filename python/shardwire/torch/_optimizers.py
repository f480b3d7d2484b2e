# SPDX-License-Identifier: Apache-2.0
"""The state and the options that optimizers keep of parameters."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Iterator, Mapping, Sequence, Union

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .. import InvalidArgument, LayoutMismatch, Unsupported
from ._dtensor import is_dtensor
from ._layouts import REPLICATED, Local, Parameter

Optimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], Mapping[str, torch.optim.Optimizer], None]

# Options that number or name parameters, which differ between ranks.
_NUMBERS = {"params", "param_names"}


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that keeps state on this rank."""
    own: torch.optim.Optimizer = optimizer
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        zero: Any = optimizer
        # Each step begins so: schedulers change the groups that it shows.
        zero._sync_param_groups(zero.param_groups, zero.optim.param_groups)
        own = zero.optim
    return own


def _each(optimizers: Optimizers) -> Sequence[torch.optim.Optimizer]:
    if isinstance(optimizers, Mapping):
        return list(optimizers.values())
    if isinstance(optimizers, Sequence):
        return optimizers
    return [] if optimizers is None else [optimizers]


def list_of(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    """The optimizers that keep state on this rank."""
    return list(map(_inner, _each(optimizers)))


def show_options(optimizers: Optimizers) -> None:
    """Gives the groups that ZeRO shows the options of those that it steps by, which it would overwrite at the next step."""
    for one in _each(optimizers):
        if isinstance(one, ZeroRedundancyOptimizer):
            for shown, group in zip(one.param_groups, one.optim.param_groups):
                for option in [option for option, _ in options(shown) if option not in group]:
                    del shown[option]
                shown.update(options(group))


@dataclasses.dataclass(slots=True, eq=False)
class Optimized:
    """A parameter in a group of an optimizer."""

    parameter: Parameter
    optimizer: torch.optim.Optimizer
    group: dict[str, Any]

    @property
    def state(self) -> dict[str, Any]:
        """Empty if there is none."""
        state: dict[str, Any] = self.optimizer.state.get(self.parameter.key, {})
        return state

    def local(self, tensor: torch.Tensor) -> Local | None:
        """This rank's part of a tensor of the state; None if it has none of the parameter's elements."""
        if tensor.dim() or is_dtensor(tensor):
            return self.parameter.state(tensor)
        return Local((), REPLICATED, tensor, tensor)


def optimized(parameters: Sequence[Parameter], optimizers: Sequence[torch.optim.Optimizer]) -> list[Optimized]:
    """In the order of param_groups. Gathers of torch follow the order of the state, which has to be equal on all ranks."""
    by_key: dict[int, list[Parameter]] = {}
    for parameter in parameters:
        by_key.setdefault(id(parameter.key), []).append(parameter)
    found: list[Optimized] = []
    seen: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for key in group["params"]:
                if id(key) in seen:
                    raise InvalidArgument(f"two optimizers or groups have the parameter {by_key[id(key)][0].fqn}")
                if id(key) not in by_key:
                    raise InvalidArgument(f"an optimizer has a parameter of shape {tuple(key.shape)} that the model lacks")
                seen.add(id(key))
                found.extend(Optimized(parameter, optimizer, group) for parameter in by_key[id(key)])
    return found


_ENTRY = "optimizer_state/"
# Prefix of entries of an optimizer's state that belong to no parameter.


def entry_name(number: int, key: Any) -> str:
    """Under which an entry that belongs to no parameter is published, of an optimizer of this number."""
    if type(key) is not str:
        raise Unsupported(f"optimizer.state has an entry of the key {key!r}, which is neither a parameter nor text")
    return f"{_ENTRY}{number}/{key}"


def entry_of(name: str) -> tuple[int, str] | None:
    """Number of the optimizer and key of a published entry; None for other names."""
    if not name.startswith(_ENTRY):
        return None
    number, _, key = name[len(_ENTRY):].partition("/")
    return int(number), key


def entries(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[int, Any, Any]]:
    """What optimizers keep under keys that are no parameters, such as a clock: number of the optimizer, key, entry."""
    return ((number, key, entry) for number, optimizer in enumerate(optimizers) for key, entry in optimizer.state.items()
            if not isinstance(key, torch.Tensor))


_GROUP = "optimizer_group/"
# Prefix of the options of groups without parameters.


def empty_groups(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Groups without parameters on this rank, and the names under which their options are published."""
    return ((f"{_GROUP}{number}/{place}", group) for number, optimizer in enumerate(optimizers)
            for place, group in enumerate(optimizer.param_groups) if not group["params"])


def options(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options of a group, without the parameters that it lists."""
    return ((name, value) for name, value in group.items() if name not in _NUMBERS)


def groups_differ(first: str, second: str, known: Mapping[str, Any], received: Mapping[str, Any]) -> LayoutMismatch:
    """Error for two parameters of one group that received different options."""
    differ = sorted(name for name in known.keys() | received.keys() if known.get(name) != received.get(name))
    return LayoutMismatch(f"{first} and {second} are in one group, but their sources differ in {', '.join(differ)}")


def require_loadable(optimizer: torch.optim.Optimizer, states: Sequence[tuple[dict[str, Any], str, Any]],
                     groups: Sequence[tuple[dict[str, Any], dict[str, Any]]], others: Mapping[str, Any]) -> None:
    """Has a copy of the optimizer try what its states, groups and other entries will be. Raises LayoutMismatch if it refuses them.

    The copy shares the tensors, whose elements have not arrived yet.
    """
    tried: dict[Any, Any] = collections.defaultdict(dict)
    tried.update((key, dict(kept) if isinstance(kept, dict) else kept) for key, kept in optimizer.state.items()
                 if isinstance(key, torch.Tensor))
    copies = {id(optimizer.state[key]): kept for key, kept in tried.items()}
    for state, name, value in states:
        copies.get(id(state), {})[name] = value
    received = {id(group): dict(chosen) for group, chosen in groups}
    tried.update(others)
    copy = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    try:
        copy.__setstate__({"state": tried, "param_groups": [
            {**{name: group[name] for name in _NUMBERS if name in group}, **received.get(id(group), dict(options(group)))}
            for group in optimizer.param_groups]})
    except Exception as error:
        raise LayoutMismatch(f"{type(optimizer).__name__}.__setstate__() refuses the state and options that the sources have: "
                             f"{type(error).__name__}: {error}") from error


def loaded(optimizer: torch.optim.Optimizer) -> None:
    """What torch does at the end of load_state_dict(): adds options that the sources did not know, and calls hooks."""
    optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def steps_on_device(group: Mapping[str, Any]) -> bool:
    """Whether an optimizer counts the steps of a group where its parameters are."""
    return bool(group.get("fused") or group.get("capturable"))


def step_device(group: Mapping[str, Any], key: torch.Tensor) -> torch.device:
    """Where an optimizer keeps one-element states such as `step`."""
    return key.device if steps_on_device(group) else torch.device("cpu")
