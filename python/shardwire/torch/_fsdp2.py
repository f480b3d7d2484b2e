# SPDX-License-Identifier: Apache-2.0
"""FSDP2: fully_shard(). A module may register gathered parameters at times; the shards are found at its state."""

from __future__ import annotations

from typing import Any, Iterator

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ._layouts import Ranks, local_of


def _params(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                yield from group.fsdp_params


def parameters(model: nn.Module, ranks: Ranks) -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}
    for one in _params(model):
        shard: torch.Tensor = one.sharded_param
        local = local_of(shard, ranks, strided_first=True)
        entry = (id(shard), local, shard, lambda tensor: local_of(tensor, ranks, strided_first=True), False)
        info = one._module_info
        found[id(info.module), info.param_name] = entry
        for module, name in zip(info.shared_modules, info.shared_param_names):
            found[id(module), name] = entry
    return found


def reshard(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
