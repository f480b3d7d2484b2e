# SPDX-License-Identifier: Apache-2.0
"""Plain data that tells how to build a model with its optimizers. Its repr() is code, so a failure can be kept as a case."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor of numbers that follow from `number`."""

    shape: tuple[int, ...] = (2, 3)
    dtype: str = "float32"
    look: str = "plain"
    """How it lies in memory: see build.LOOKS."""
    number: int = 0


@dataclasses.dataclass(frozen=True)
class Common:
    """One tensor, wherever the same optimizer has an equal mark."""

    tensor: Made


@dataclasses.dataclass(frozen=True)
class Slot:
    """A parameter or a buffer of a module."""

    module: int = 0
    kind: str = "parameter"
    """parameter, buffer, or transient: a buffer that is not persistent."""
    shape: tuple[int, ...] = (2, 3)
    dtype: str = "float32"
    look: str = "plain"
    frozen: bool = False
    tie: tuple[str, int] | None = None
    """To an earlier slot of the same kind, whose shape and type it has: by "attribute" (one object), or by "data" (one memory)."""


@dataclasses.dataclass(frozen=True)
class Module:
    parent: int = 0
    shares: int | None = None
    """The earlier module that has this further name."""
    extra: tuple[Any, ...] = ()
    """What get_extra_state() gives, if anything."""
    hooks: tuple[str, ...] = ()
    """See hooks.MODULES."""


@dataclasses.dataclass(frozen=True)
class Group:
    members: tuple[int, ...] = ()
    """Numbers of slots."""
    options: tuple[tuple[str, Any], ...] = ()
    late: bool = False
    """Added after the first step."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    kind: str = "SGD"
    """See build.OPTIMIZERS."""
    groups: tuple[Group, ...] = (Group(),)
    entries: tuple[tuple[int, str, Any], ...] = ()
    """State that it keeps besides: slot, name, value."""
    unowned: tuple[tuple[str, Any], ...] = ()
    """Entries of its state that belong to no parameter."""
    hooks: tuple[str, ...] = ()
    """See hooks.OPTIMIZERS."""


@dataclasses.dataclass(frozen=True)
class Side:
    """A model with its optimizers. Module 0 is the model."""

    modules: tuple[Module, ...] = (Module(),)
    slots: tuple[Slot, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    steps: tuple[tuple[int, ...], ...] = ()
    """Of each training step the slots that have a gradient."""
    number: int = 1
    default_dtype: str = "float32"
    """While it is built and trained."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    source: Side
    target: Side
    context: str = ""
    """What surrounds the calls of the package: "", "meta" (the default device), "float64" (the default type)."""
