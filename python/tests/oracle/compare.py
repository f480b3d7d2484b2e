# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a model and its optimizers, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Picture = dict[str, Any]


def _tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    return (type(tensor).__name__, tensor.dtype, tuple(tensor.shape), str(tensor.device), tensor.requires_grad, tensor.is_conj(),
            tensor.is_neg(), "meta" if tensor.is_meta else bytes(plain.view(torch.uint8).numpy()) if plain.numel() else b"")


def _memory(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset()


class _Painter:
    def __init__(self) -> None:
        self.picture: Picture = {}
        self._first: dict[tuple[int, ...], str] = {}

    def add(self, path: str, thing: Any, memory: bool = True) -> None:
        if isinstance(thing, torch.Tensor):
            self.picture[path] = _tensor(thing)
            if memory and thing.numel() and not thing.is_meta:
                self.picture[f"{path} / memory"] = self._first.setdefault(_memory(thing), path)
        elif isinstance(thing, dict):
            self.picture[path] = type(thing).__name__
            for key in sorted(thing, key=repr):
                self.add(f"{path} / {key!r}", thing[key], memory)
        elif isinstance(thing, (list, tuple)):
            self.picture[path] = f"{type(thing).__name__} of {len(thing)}"
            for number, item in enumerate(thing):
                self.add(f"{path} / {number}", item, memory)
        else:
            self.picture[path] = f"{type(thing).__name__} {thing!r}"


def picture(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> Picture:
    """Keys, types, devices and bytes, and of each tensor the first that has its memory."""
    painter = _Painter()
    for key, value in model.state_dict(keep_vars=True).items():
        painter.add(f"model / {key}", value)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        painter.add(f"buffer / {name}", buffer)
    names = {id(parameter): name for name, parameter in reversed([*model.named_parameters(remove_duplicate=False)])}
    for number, optimizer in enumerate(optimizers):
        # By name: the package creates states in the order of param_groups, and other entries in that of their names; torch in that of
        # the source.
        for key, state in sorted(optimizer.state.items(), key=lambda item: names.get(id(item[0]), f"/{item[0]!r}")):
            if not isinstance(key, torch.Tensor):
                painter.add(f"optimizer {number} / unowned / {key!r}", state)
                continue
            painter.picture[f"optimizer {number} / state / {names[id(key)]}"] = type(state).__name__
            for name, kept in sorted(state.items(), key=lambda item: repr(item[0])):
                painter.add(f"optimizer {number} / state / {names[id(key)]} / {name!r}", kept)
        for place, group in enumerate(optimizer.param_groups):
            described = {name: [names[id(p)] for p in value] if name == "params" else value for name, value in group.items()}
            painter.add(f"optimizer {number} / group {place}", described)
    return painter.picture


def picture_of(thing: Any) -> Picture:
    painter = _Painter()
    painter.add("", thing, memory=False)
    return painter.picture


def differences(expected: Picture, found: Picture) -> list[str]:
    def shown(value: Any) -> str:
        if not isinstance(value, tuple):
            return str(value)
        kind, dtype, shape, device, *_, data = value
        return f"{kind} {dtype} {shape} {device} {_} {data.hex() if isinstance(data, bytes) else data}"

    return [f"{path}: expected {shown(expected.get(path, 'nothing'))}, found {shown(found.get(path, 'nothing'))}"
            for path in dict.fromkeys([*expected, *found]) if expected.get(path, "nothing") != found.get(path, "nothing")]
