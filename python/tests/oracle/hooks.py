# SPDX-License-Identifier: Apache-2.0
"""Hooks that modules and optimizers of recipes have, by name. What they do twice is as what they do once, as a picture calls them too."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch import nn


def _own(module: nn.Module, state: dict[str, Any], prefix: str) -> list[str]:
    """Keys of floating tensors of the module itself."""
    keys = [prefix + name for name in (*module._parameters, *module._buffers)]
    return [key for key in keys if isinstance(state.get(key), torch.Tensor) and state[key].is_floating_point()]


def _rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in _own(module, state, prefix):
        state[f"{prefix}old_{key[len(prefix):]}"] = state.pop(key)


def _rename_back(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}old_")]:
        state[prefix + key[len(prefix) + 4:]] = state.pop(key)


def _double(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in _own(module, state, prefix)[:1]:
        state[key] = state[key] * 2


def _halve(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in _own(module, state, prefix)[:1]:
        state[key] = state[key] / 2


def _double_in_place(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in _own(module, state, prefix)[:1]:
        state[key].mul_(2)


def _drop(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in _own(module, state, prefix)[:1]:
        del state[key]


def _fill(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and name not in module._non_persistent_buffers_set:
            state.setdefault(prefix + name, torch.ones_like(tensor.detach()))


def _add_format(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    state[prefix + "format"] = torch.tensor([2, 7], device="cpu")
    metadata["seen"] = "by a hook"


def _take_format(module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    found = state.pop(prefix + "format", torch.zeros(2, device="cpu", dtype=torch.int64))
    module.register_buffer("format_found", found + len(metadata.get("seen", "")), persistent=False)


def _exchange(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    keys = _own(module, state, prefix)
    for first, second in zip(keys, keys[1:]):
        if state[first].shape == state[second].shape and state[first].dtype == state[second].dtype:
            state[first], state[second] = state[second], state[first]
            return


def _flush(module: nn.Module, *_: Any) -> None:
    first = next((tensor for tensor in module._parameters.values() if tensor is not None and tensor.is_floating_point()), None)
    for tensor in module._buffers.values():
        if first is not None and tensor is not None and tensor.dtype == torch.float32 and tensor.stride() == tensor.contiguous().stride():
            with torch.no_grad():
                tensor.fill_(float(first.detach().sum()))


def _add_after(module: nn.Module, *_: Any) -> None:
    with torch.no_grad():
        for tensor in list(module._parameters.values())[:1]:
            if tensor is not None:
                tensor.add_(1)


def _refuse(*_: Any) -> None:
    raise ValueError("a hook refuses")


class Packing(nn.Module):
    """Saves and loads by methods of its own."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "packing"] = {"bits": 8}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        bits = state_dict.pop(prefix + "packing", {"bits": 1})["bits"]
        self.register_buffer("bits_found", torch.full((2,), bits, device="cpu"), persistent=False)
        super()._load_from_state_dict(state_dict, prefix, *others)


class Whole(nn.Module):
    """Has a state dict of its own, as the model or as a part."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        state = super().state_dict(*args, **options)
        state[options.get("prefix", "") + "whole"] = 3
        return state

    def load_state_dict(self, state_dict: Any, *args: Any, **options: Any) -> Any:
        state_dict = {key: value for key, value in state_dict.items() if key.rpartition(".")[2] != "whole"}
        return super().load_state_dict(state_dict, *args, **options)


MODULES: dict[str, Callable[[nn.Module], Any]] = {
    "rename": lambda module: (module._register_state_dict_hook(_rename), module.register_load_state_dict_pre_hook(_rename_back)),
    "rename alone": lambda module: module.register_state_dict_post_hook(functools.partial(_rename)),
    "rename back": lambda module: module.register_load_state_dict_pre_hook(_rename_back),
    "double and halve": lambda module: (module._register_state_dict_hook(_double), module.register_load_state_dict_pre_hook(_halve)),
    "double in place": lambda module: module.register_load_state_dict_pre_hook(_double_in_place),
    "drop and fill": lambda module: (module._register_state_dict_hook(_drop), module.register_load_state_dict_pre_hook(_fill)),
    "drop": lambda module: module.register_state_dict_post_hook(functools.partial(_drop)),
    "format": lambda module: (module._register_state_dict_hook(_add_format), module.register_load_state_dict_pre_hook(_take_format)),
    "exchange": lambda module: module.register_load_state_dict_pre_hook(_exchange),
    "flush": lambda module: module.register_state_dict_pre_hook(_flush),
    "add after": lambda module: module.register_load_state_dict_post_hook(_add_after),
    "refuse": lambda module: module.register_load_state_dict_post_hook(_refuse),
    "tolerate": lambda module: module.register_load_state_dict_post_hook(lambda _, keys: (keys.missing_keys.clear(), None)[1]),
    "packing": lambda module: None,  # of the class
    "whole": lambda module: None,
}
CLASSES: dict[str, type[nn.Module]] = {"packing": Packing, "whole": Whole}


def _add_mine(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    state["mine"] = {"ticks": [3, torch.ones(2, device="cpu", dtype=torch.float32)]}


def _take_mine(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    for group in state["param_groups"]:
        group["mine found"] = state.get("mine")


def _faster(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "param_groups": [{**group, "lr": 0.75} for group in state["param_groups"]]}


def _mark(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        group["marked"] = len(optimizer.state)


def _without_states(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "state": {}}


OPTIMIZERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "mine": lambda one: (one.register_state_dict_post_hook(_add_mine), one.register_load_state_dict_pre_hook(_take_mine)),
    "faster": lambda one: one.register_load_state_dict_pre_hook(_faster),
    "mark before": lambda one: one.register_state_dict_pre_hook(_mark),
    "mark after": lambda one: one.register_load_state_dict_post_hook(_mark),
    "without states": lambda one: one.register_state_dict_post_hook(_without_states),
    "start anew": lambda one: one.register_load_state_dict_pre_hook(_without_states),
    "refuse": lambda one: one.register_load_state_dict_post_hook(_refuse),
}
