# SPDX-License-Identifier: Apache-2.0
"""Recipes that found a fault, by what it was, and how their outcome begins."""

from __future__ import annotations

import dataclasses
from typing import Any

from recipe import Common, Group, Made, Module, Optimizer, Recipe, Side, Slot


def _side(number: int, *optimizers: Optimizer, slots: tuple[Slot, ...] = (Slot(), Slot()), **others: Any) -> Side:
    return Side(slots=slots, optimizers=optimizers, number=number, **others)


def _sgd(*entries: Any, unowned: tuple[Any, ...] = (), **options: Any) -> Optimizer:
    return Optimizer("SGD", (Group((0, 1), tuple(options.items())),), entries, unowned)


_EMPTY = Optimizer("SGD", (Group((0, 1)), Group((), (("lr", 0.25),))))
_NOTHING = Optimizer("SGD", (Group(),), unowned=(("clock", 1),))
_TABLE = [(slot, "table", Common(Made((4,)))) for slot in (0, 1)]
_TABLES = [(slot, "table", Made((4,), number=slot)) for slot in (0, 1)]
_LISTS = [(slot, "tables", [Common(Made((4,))), 1]) for slot in (0, 1)]
_ADAM = Optimizer("Adam", (Group((0, 1)),))
_KEEPING = Optimizer("Keeping", (Group((0, 1)),))
_TIED = (Slot(), Slot(tie=("data", 0)))
_BUFFERS = (Slot(), Slot(), Slot(kind="buffer"), Slot(kind="buffer"))
_RATES = Optimizer("Adam with a tensor for its rate", (Group((0,)), Group((1,))))

def _hooked(name: str, loaded_by: str | None = None) -> Recipe:
    """Slots 0 and 1 are the model's, which has the hooks."""
    return Recipe(*(_side(number, _sgd(), modules=(Module(hooks=(hooks,) if hooks else ()), Module(hooks=(hooks,) if hooks else ())))
                    for number, hooks in ((1, name), (2, name if loaded_by is None else loaded_by))))


def _hooked_optimizer(name: str) -> Recipe:
    return Recipe(*(_side(number, dataclasses.replace(_KEEPING, hooks=(name,)), steps=((0, 1),)) for number in (1, 2)))


KEPT: dict[str, tuple[str, Recipe]] = {
    "options of a group without parameters": ("equal", Recipe(_side(1, _EMPTY), _side(2, Optimizer("SGD", (Group((0, 1)), Group()))))),
    "an option that the sources lack": ("equal", Recipe(_side(1, _sgd()), _side(2, _sgd(other=[3])))),
    "an option of another type": ("equal", Recipe(_side(1, _sgd(lr=0.5, scale=1)), _side(2, _sgd(scale=Made(()))))),
    "entries of no parameter without any parameter": (
        "equal", Recipe(_side(1, _NOTHING), _side(2, dataclasses.replace(_NOTHING, unowned=(("stale", 1),))))),
    "one element with a stride, by value": ("equal", Recipe(_side(1, _sgd(unowned=(("clock", Made((1,), look="sliced")),))),
                                                           _side(2, _sgd()))),
    "entries of no parameter with one tensor, in another order than that of their names": ("equal", Recipe(
        _side(1, _sgd(unowned=tuple((key, Common(Made((3,)))) for key in ("step", "phase", "clock")))), _side(2, _sgd()))),
    "a rate that groups of the target share": ("equal", Recipe(
        _side(1, dataclasses.replace(_RATES, groups=(Group((0,)), Group((1,), (("lr", Made((), number=3)),))))), _side(2, _RATES))),
    "one tensor in two states, cold": ("equal", Recipe(_side(1, _sgd(*_TABLE)), _side(2, _sgd()))),
    "one tensor in two states, two in the target": ("equal", Recipe(_side(1, _sgd(*_TABLE)), _side(2, _sgd(*_TABLES)))),
    "two tensors in two states, one in the target": ("equal", Recipe(_side(1, _sgd(*_TABLES)), _side(2, _sgd(*_TABLE)))),
    "one tensor in two lists of other order": ("equal", Recipe(
        _side(1, _sgd((0, "more", [Common(Made((4,)))]), (0, "extra", [Common(Made((4,)))]))), _side(2, _sgd()))),
    "one tensor in two lists": ("equal", Recipe(_side(1, _sgd(*_LISTS)), _side(2, _sgd()))),
    "one step for all parameters, and a further step": (
        "equal", Recipe(_side(1, _KEEPING, steps=((0, 1),)), _side(2, _KEEPING))),
    "a step that is a number": ("equal", Recipe(
        _side(1, dataclasses.replace(_ADAM, entries=((0, "step", 3),)), steps=((0, 1),)), _side(2, _ADAM))),
    "a state named buffer": ("equal", Recipe(_side(1, _sgd((0, "buffer", Made((2, 3))))), _side(2, _sgd()))),
    "a state named like an item of another": ("refused", Recipe(
        _side(1, _sgd((0, "history[0]", (Made((2,)),)), (0, "history", {"a": 1}))), _side(2, _sgd()))),
    "a state named param_group": ("refused", Recipe(_side(1, _sgd((0, "param_group", 3))), _side(2, _sgd()))),
    "a number where the target has a tensor": ("equal", Recipe(_side(1, _sgd((0, "seen", 3))), _side(2, _sgd((0, "seen", Made(())))))),
    "a tensor where the target has a number": ("equal", Recipe(_side(1, _sgd((0, "seen", Made((3,))))), _side(2, _sgd((0, "seen", 3))))),
    "weights tied by .data": ("equal", Recipe(_side(1, _sgd(), slots=_TIED), _side(2, _sgd(), slots=_TIED))),
    "weights that drifted apart, into one": ("refused", Recipe(_side(1, _sgd()), _side(2, _sgd(), slots=_TIED))),
    "a view that changes signs, into a plain buffer": ("refused", Recipe(
        _side(1, _sgd(), slots=(*_BUFFERS[:2], Slot(kind="buffer", look="negative"))), _side(2, _sgd(), slots=_BUFFERS[:3]))),
    "a buffer of two names, into two": ("equal", Recipe(
        _side(1, _sgd(), slots=(*_BUFFERS[:3], Slot(kind="buffer", tie=("attribute", 2)))), _side(2, _sgd(), slots=_BUFFERS))),
    "a parameter that the sources never stepped": (
        "equal", Recipe(_side(1, _ADAM, steps=((0,),)), _side(2, _ADAM, steps=((0, 1), (0, 1))))),
    "one tensor in dicts and in an entry of no parameter": ("equal", Recipe(
        _side(1, _sgd(*((slot, "by", {"a": Common(Made((1,)))}) for slot in (0, 1)), unowned=(("clock", (1, Common(Made((1,))))),))),
        _side(2, _sgd()))),
    "one tensor in a state and in a dict of another": ("equal", Recipe(
        _side(1, _sgd((0, "table", Common(Made((4,)))), (1, "by", {7: [Common(Made((4,)))]}))), _side(2, _sgd()))),
    "one rate in two groups": ("equal", Recipe(*(_side(number, dataclasses.replace(_RATES, groups=tuple(
        Group((slot,), (("lr", Common(Made((), number=3))),)) for slot in (0, 1)))) for number in (1, 2)))),
    "one rate in two groups, two in the target": ("equal", Recipe(_side(1, _RATES), _side(2, dataclasses.replace(
        _RATES, groups=tuple(Group((slot,), (("lr", Made((), number=slot)),)) for slot in (0, 1)))))),
    "one tensor in extra states of two modules": ("equal", Recipe(
        _side(1, _sgd(), modules=(Module(extra=([Common(Made((3,)))],)), Module(extra=({"a": Common(Made((3,)))},)))),
        _side(2, _sgd(), modules=(Module(extra=(None,)), Module(extra=(None,)))))),
    "names that hooks change and change back": ("equal", _hooked("rename")),
    "values that hooks change and change back": ("equal", _hooked("double and halve")),
    "values that hooks change": ("equal", _hooked("double and halve", "")),
    "a value of one of two tied weights that a hook changes": ("equal", Recipe(
        _side(1, _sgd(), slots=_TIED, modules=(Module(hooks=("double and halve",)),)), _side(2, _sgd(), slots=_TIED))),
    "a value of a weight that a hook changes, tied to one of a later module": ("equal", Recipe(*(_side(
        number, _sgd(), modules=(Module(), Module(hooks=hooks), Module()), slots=(Slot(1), Slot(2, tie=("data", 0))))
        for number, hooks in ((1, ()), (2, ("double and halve",)))))),
    "loaded values that a hook changes": ("equal", _hooked("double in place")),
    "two tensors that a hook exchanges": ("equal", _hooked("exchange")),
    "a key that hooks add, and what they know of it": ("equal", _hooked("format")),
    "a key of methods of the module": ("equal", _hooked("packing")),
    "a state dict of the model's own": ("equal", _hooked("whole")),
    "a hook after the load": ("equal", _hooked("add after")),
    "a buffer that a hook writes first": ("equal", Recipe(*(
        _side(number, _sgd(), modules=(Module(hooks=("flush",)),), slots=_BUFFERS) for number in (1, 2)))),
    "a parameter that a hook leaves out": ("refused", _hooked("drop and fill")),
    "names that hooks change alone": ("torch refuses (LayoutMismatch here)", _hooked("rename alone")),
    "a key that hooks of optimizers add": ("equal", _hooked_optimizer("mine")),
    "a state dict of which hooks of optimizers make another": ("equal", _hooked_optimizer("faster")),
    "states that a hook takes away before the load": ("equal", _hooked_optimizer("start anew")),
    "states that a hook takes away": ("refused", _hooked_optimizer("without states")),
}
