# SPDX-License-Identifier: Apache-2.0
"""FSDP2: fully_shard(). A module may register gathered parameters at times; the shards are found at its state."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Iterator

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ._layouts import Parameter, Ranks, local_of, state_like


def _params(modules: Iterable[nn.Module]) -> Iterator[Any]:
    for module in modules:
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            # In torch 2.11 a module has one group or none.
            one = getattr(state, "_fsdp_param_group", None)
            for group in getattr(state, "_fsdp_param_groups", [one] if one else []):
                yield from group.fsdp_params


def _now(one: Any) -> Callable[[], object]:
    known = weakref.ref(one)
    return lambda: getattr(known(), "sharded_param", None)


def parameters(modules: Iterable[nn.Module], ranks: Ranks) -> dict[tuple[int, str], Parameter]:
    found: dict[tuple[int, str], Parameter] = {}
    for one in _params(modules):
        shard: torch.Tensor = one.sharded_param
        local = local_of(shard, ranks, strided_first=True)
        entry = Parameter("", local, shard, state_like(local, ranks, strided_first=True), False, _now(one), id(shard))
        info = one._module_info
        found[id(info.module), info.param_name] = entry
        for module, name in zip(info.shared_modules, info.shared_param_names):
            found[id(module), name] = entry
    return found


def reshard(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
