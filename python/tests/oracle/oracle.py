# SPDX-License-Identifier: Apache-2.0
"""Restores a target through the package and another one by torch, and tells what differs."""

from __future__ import annotations

import contextlib
import copy
import itertools
from typing import Any, Iterator
from unittest import mock

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import shardwire as sw
import shardwire.torch as swt
from build import Built, build, default_dtype
from compare import Picture, differences, picture, picture_of
from recipe import Recipe

REFUSALS = (sw.LayoutMismatch, sw.Unsupported, sw.InvalidArgument)
_numbers = itertools.count()  # of publications


class Wrong(AssertionError):
    """The package did something else than torch, and did not refuse."""


def _kept_as_is(param: torch.Tensor, value: torch.Tensor, *_: Any) -> torch.Tensor:
    return value


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Torch converts states to the type of their parameter, and loses bits. The package keeps them."""
    with mock.patch.object(torch.optim.Optimizer, "_process_value_according_to_param_policy", staticmethod(_kept_as_is)):
        yield


def _by_load(recipe: Recipe) -> Built:
    source, target = build(recipe.source), build(recipe.target)
    target.model.load_state_dict(copy.deepcopy(source.model.state_dict()))
    with exact():
        for optimizer, saved in zip(target.optimizers, copy.deepcopy([one.state_dict() for one in source.optimizers]), strict=True):
            optimizer.load_state_dict(saved)
    return target


def _by_set(recipe: Recipe) -> Built | None:
    """None where torch does something else than load_state_dict()."""
    source, target = build(recipe.source), build(recipe.target)
    # get_state_dict() steps an optimizer without state, and set_state_dict() one without state or gradients.
    if not all(optimizer.state for one in (source, target) for optimizer in one.optimizers):
        return None
    # set_state_dict() mixes groups without parameters up.
    if any(not group["params"] for one in (source, target) for optimizer in one.optimizers for group in optimizer.param_groups):
        return None
    # set_state_dict() drops the state of frozen parameters.
    if any(not key.requires_grad for one in (source, target) for optimizer in one.optimizers for group in optimizer.param_groups
           for key in group["params"]):
        return None
    # get_state_dict() leaves out what hooks of optimizers add.
    if any("mine" in optimizer.hooks for side in (recipe.source, recipe.target) for optimizer in side.optimizers):
        return None
    model, optim = copy.deepcopy(get_state_dict(source.model, source.optimizers))
    with exact():
        set_state_dict(target.model, target.optimizers, model_state_dict=model, optim_state_dict=optim)
    return target


def _context(name: str) -> Any:
    return torch.device("meta") if name == "meta" else default_dtype(name) if name else contextlib.nullcontext()


def _state(built: Built) -> Picture:
    return picture(built.model, built.optimizers)


def _by_package(session: sw.Session, recipe: Recipe) -> Built | Exception:
    source, target = build(recipe.source), build(recipe.target)
    for one in source.optimizers:
        one.state_dict()  # hooks of which may change it
    theirs, before = _state(source), _state(target)
    name = f"oracle {next(_numbers)}"
    result: Built | sw.Error = target
    with _context(recipe.context), exact():
        try:
            with swt.publish(session, source.model, source.optimizers, step=1, name=name):
                swt.restore_into(session, target.model, target.optimizers, name=name, timeout=20)
        except REFUSALS as error:
            result = error
        except (KeyError, RuntimeError, TypeError, ValueError) as error:  # of hooks, which load_state_dict() calls too
            if isinstance(error, sw.Error):
                raise
            return error
    changed = differences(theirs, _state(source))
    if changed:
        raise Wrong("\n".join(["the source has changed", *changed]))
    if isinstance(result, sw.Error):
        changed = differences(before, _state(target))
        if changed:
            raise Wrong("\n".join([f"the target has changed, although the restore was refused: {result}", *changed]))
    return result


def _torchs_dict(built: Built) -> Picture:
    try:
        return picture_of(get_state_dict(built.model, built.optimizers))
    except Exception as error:  # torch has it not for such optimizers
        return {"": type(error)}


def _same(expected: Built, found: Built, how: str) -> None:
    wrong = differences(_state(expected), _state(found))
    if wrong:
        raise Wrong("\n".join([f"not as after {how}", *wrong]))


def outcome(session: sw.Session, recipe: Recipe) -> str:
    """In a word or two. Raises Wrong if a restore is neither what torch does nor refused."""
    try:
        build(recipe.source), build(recipe.target)
    except Exception as error:
        return f"not built: {type(error).__name__}"
    by_package = _by_package(session, recipe)
    try:
        by_load = _by_load(recipe)
    except Exception:
        return f"torch refuses ({type(by_package).__name__} here)"
    if isinstance(by_package, Exception) and not isinstance(by_package, sw.Error):
        raise Wrong(f"{type(by_package).__name__}: {by_package}") from by_package
    if isinstance(by_package, Exception):
        return f"refused: {type(by_package).__name__}: {by_package}"
    _same(by_load, by_package, "load_state_dict()")
    try:
        by_set = _by_set(recipe)
    except Exception:
        by_set = None
    if by_set is not None:
        _same(by_set, by_package, "set_state_dict()")
    for target in (by_load, by_package):
        try:
            with default_dtype(recipe.target.default_dtype):
                target.step(target.trainable(), 100)
        except Exception as error:  # equal on both sides, or the states differ now
            target.model.register_buffer("failed", torch.tensor(hash(type(error)) % 1000))
    _same(by_load, by_package, "load_state_dict() and a further step")
    wrong = differences(_torchs_dict(by_load), _torchs_dict(by_package))
    if wrong:
        raise Wrong("\n".join(["get_state_dict() differs", *wrong]))
    return "equal" if by_set is None else "equal to both"
