# SPDX-License-Identifier: Apache-2.0
"""Builds what a recipe tells, and trains it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Callable, Iterator

import torch
from torch import nn

import hooks
from recipe import Common, Made, Optimizer, Side


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, number: int) -> torch.Tensor:
    count = 1
    for extent in shape:
        count *= extent
    whole = (torch.arange(count, dtype=torch.int64, device="cpu") * 7 + number * 5) % 31 - 11
    if dtype == torch.bool:
        return (whole % 3 == 0).reshape(shape)
    if dtype.is_complex:
        return torch.complex(whole.double() / 8, whole.flip(0).double() / 4 + 1).to(dtype).reshape(shape)
    if dtype.is_floating_point:
        return (whole.double() / 8).to(dtype).reshape(shape)
    return whole.abs().to(dtype).reshape(shape)


def _transposed(numbers: torch.Tensor) -> torch.Tensor:
    dims = tuple(reversed(range(numbers.dim())))
    return numbers.permute(dims).contiguous().permute(dims)


def _sliced(numbers: torch.Tensor) -> torch.Tensor:
    whole = numbers.new_zeros((*numbers.shape[:-1], numbers.shape[-1] * 2 + 1) if numbers.dim() else (3,))
    part = whole[..., 1::2] if numbers.dim() else whole[1]
    return part.copy_(numbers)


def _expanded(numbers: torch.Tensor) -> torch.Tensor:
    return numbers[:1].clone().expand(numbers.shape) if numbers.dim() and len(numbers) else numbers


def _conjugate(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.conj() if numbers.is_complex() else numbers


def _negative(numbers: torch.Tensor) -> torch.Tensor:
    return torch.complex(numbers, -numbers).conj().imag if numbers.dtype in (torch.float32, torch.float64) else numbers


LOOKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda numbers: numbers, "transposed": _transposed, "sliced": _sliced, "expanded": _expanded, "conjugate": _conjugate,
    "negative": _negative,
}


def tensor_of(made: Made, number: int = 0) -> torch.Tensor:
    return LOOKS[made.look](_numbers(made.shape, getattr(torch, made.dtype), made.number + number))


class Part(nn.Module):
    """A module whose extra state is what it was given."""

    kept: Any = None

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


class Averaging(torch.optim.Optimizer):
    """Momentum whose rate follows a clock that belongs to no parameter."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.state["clock"] = {"ticks": 0, "sum": torch.zeros(())}  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        clock: Any = self.state["clock"]  # type: ignore[index]
        clock["ticks"] += 1
        clock["sum"] += 1.0 / clock["ticks"]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    speed = self.state[p].setdefault("speed", torch.zeros_like(p))
                    p.sub_(speed.mul_(0.5).add_(p.grad) * group["lr"] / clock["ticks"])


class Keeping(torch.optim.Optimizer):
    """State of all kinds: numbers, lists, dicts, None, wide moments, and one step tensor and one table for all parameters."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.5, 0.25), "note": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        started = [state for state in self.state.values() if "step" in state]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "step" not in state:
                    state.update(step=started[0]["step"] if started else torch.zeros(()), seen=0, last=None, worst=float("nan"),
                                 table=started[0]["table"] if started else torch.linspace(-1, 1, 5),
                                 history=[torch.zeros_like(p), (torch.zeros(3, dtype=torch.float64), 0.5)],
                                 by={"mean": torch.zeros(()), 3: 4})
                    started.append(state)
                state["step"] += 1
                state["seen"] += 1
                state["last"] = float(state["step"])
                state["history"][0].mul_(group["betas"][0]).add_(p.grad)
                state["by"]["mean"] += 1
                p.sub_(state["history"][0] * group["lr"] * (1 + state["table"].sum() / state["step"]).to(p.real.dtype))


_optim = torch.optim
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: _optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: _optim.SGD(p, lr=0.1, momentum=0.5),
    "Adam": lambda p: _optim.Adam(p, lr=0.1),
    "Adam with amsgrad": lambda p: _optim.Adam(p, lr=0.1, amsgrad=True),
    "Adam foreach": lambda p: _optim.Adam(p, lr=0.1, foreach=True),
    "Adam fused": lambda p: _optim.Adam(p, lr=0.1, fused=True),
    "Adam capturable": lambda p: _optim.Adam(p, lr=0.1, capturable=True),
    "Adam with a tensor for its rate": lambda p: _optim.Adam(p, lr=torch.tensor(0.1)),
    "AdamW": lambda p: _optim.AdamW(p, lr=0.1),
    "ASGD": lambda p: _optim.ASGD(p, lr=0.1, t0=1),
    "Adadelta": lambda p: _optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: _optim.Adafactor(p, lr=0.1),
    "Adagrad": lambda p: _optim.Adagrad(p, lr=0.1),
    "Adamax": lambda p: _optim.Adamax(p, lr=0.1),
    "LBFGS": lambda p: _optim.LBFGS(p, lr=0.1, max_iter=3),
    "NAdam": lambda p: _optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: _optim.RAdam(p, lr=0.1),
    "RMSprop": lambda p: _optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "Rprop": lambda p: _optim.Rprop(p, lr=0.1),
    "SGD fused": lambda p: _optim.SGD(p, lr=0.1, momentum=0.5, fused=True),
    "Averaging": Averaging,
    "Keeping": Keeping,
}
ONE_GROUP = {"LBFGS"}


@dataclasses.dataclass
class Built:
    side: Side
    model: nn.Module
    slots: dict[int, torch.Tensor]
    optimizers: list[torch.optim.Optimizer]

    def step(self, active: tuple[int, ...], number: int) -> None:
        """One training step. A gradient follows from its parameter and the number of the step."""

        def closure() -> torch.Tensor:
            loss = torch.zeros((), device="cpu")
            for slot, tensor in self.slots.items():
                tensor.grad = None
                if slot in active:
                    detached = tensor.detach()
                    tensor.grad = detached / 2 + _numbers(tuple(tensor.shape), tensor.dtype, number + slot) / 4
                    loss += (detached.abs().float() ** 2).sum()
            return loss

        for one, optimizer in zip(self.side.optimizers, self.optimizers):
            if one.kind == "Adam capturable":  # on accelerators alone
                continue
            closure()
            optimizer.step(closure)
        for tensor in self.slots.values():
            tensor.grad = None

    def trainable(self) -> tuple[int, ...]:
        return tuple(slot for slot, tensor in self.slots.items() if tensor.requires_grad)


@contextlib.contextmanager
def default_dtype(name: str) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _model(side: Side) -> tuple[nn.Module, dict[int, torch.Tensor]]:
    modules: list[nn.Module] = []
    common: dict[Common, torch.Tensor] = {}
    for number, one in enumerate(side.modules):
        kind = next((hooks.CLASSES[name] for name in one.hooks if name in hooks.CLASSES), Part if one.extra else nn.Module)
        module = modules[one.shares] if one.shares is not None else kind()
        if one.extra:
            module.kept = value_of(one.extra[0], side.number, common)
        if number:
            modules[one.parent].add_module(f"m{number}", module)
        for name in one.hooks:
            hooks.MODULES[name](module)
        modules.append(module)
    tensors: dict[int, torch.Tensor] = {}
    for number, slot in enumerate(side.slots):
        how, other = slot.tie or ("", 0)
        if how == "attribute":
            tensor = tensors[other]
        elif how == "data":
            tensor = tensors[other].detach()
            tensor = nn.Parameter(tensor, tensors[other].requires_grad) if slot.kind == "parameter" else tensor
        else:
            tensor = tensor_of(Made(slot.shape, slot.dtype, slot.look, side.number + number))
            tensor = nn.Parameter(tensor, not slot.frozen) if slot.kind == "parameter" else tensor
        tensors[number] = tensor
        if slot.kind == "parameter":
            modules[slot.module].register_parameter(f"p{number}", tensor)
        else:
            modules[slot.module].register_buffer(f"b{number}", tensor, persistent=slot.kind == "buffer")
    own = {number: tensor for number, tensor in tensors.items()
           if side.slots[number].kind == "parameter" and (side.slots[number].tie or ("",))[0] != "attribute"}
    return modules[0], own


def value_of(value: Any, number: int, common: dict[Common, torch.Tensor]) -> Any:
    """The object of a value in a recipe."""
    if isinstance(value, Common):
        return common.setdefault(value, tensor_of(value.tensor, number))
    if isinstance(value, Made):
        return tensor_of(value, number)
    if type(value) in (list, tuple):
        return type(value)(value_of(item, number, common) for item in value)
    if type(value) is dict:
        return {key: value_of(item, number, common) for key, item in value.items()}
    return value


def _groups(side: Side, one: Optimizer, slots: dict[int, torch.Tensor], late: bool, common: dict[Common, torch.Tensor]
            ) -> list[dict[str, Any]]:
    return [{"params": [slots[slot] for slot in group.members], **value_of(dict(group.options), side.number, common)}
            for group in one.groups if group.late == late]


def _trained(side: Side, model: nn.Module, slots: dict[int, torch.Tensor]) -> Built:
    commons: list[dict[Common, torch.Tensor]] = [{} for _ in side.optimizers]
    built = Built(side, model, slots, [OPTIMIZERS[one.kind](_groups(side, one, slots, False, common))
                                       for one, common in zip(side.optimizers, commons)])
    for number, active in enumerate(side.steps or ((),)):
        if active:
            built.step(active, side.number * 3 + number)
        if number == 0:
            for one, optimizer, common in zip(side.optimizers, built.optimizers, commons):
                for group in _groups(side, one, slots, True, common):
                    optimizer.add_param_group(group)
    for one, optimizer, common in zip(side.optimizers, built.optimizers, commons):
        for slot, name, value in one.entries:
            optimizer.state[slots[slot]][name] = value_of(value, side.number, common)
        for key, value in one.unowned:
            optimizer.state[key] = value_of(value, side.number, common)  # type: ignore[index]
        for name in one.hooks:
            hooks.OPTIMIZERS[name](optimizer)
    return built


def build(side: Side) -> Built:
    with default_dtype(side.default_dtype):
        return _trained(side, *_model(side))
