# SPDX-License-Identifier: Apache-2.0
"""Draws recipes: a source, and a target that is mostly built like it."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

import build
import hooks
from recipe import Common, Group, Made, Module, Optimizer, Recipe, Side, Slot

SHAPES: list[tuple[int, ...]] = [(2, 3), (4,), (1,), (), (3, 1, 2), (0, 3), (1, 1)]
# Words of the package, and names like those that it makes.
NAMES = ["extra", "step", "param", "buffer", "param_group", "extra_state", "history[0]", "history", "exp_avg"]


def _rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * max(3, len(others)) + list(others))


_yes_rarely = _rarely(False, True)
_hooks_of_modules = _rarely((), *((name,) for name in hooks.MODULES), ("rename", "flush"), ("format", "double and halve"))
_hooks_of_optimizers = _rarely((), *((name,) for name in hooks.OPTIMIZERS), ("mine", "mark after"))


def _values(dtypes: tuple[str, ...] = ("float32",)) -> st.SearchStrategy[Any]:
    # No text: Optimizer.load_state_dict() replaces it by the repr() of a generator.
    kinds = st.sampled_from([*dtypes, "float64", "int64", "bool", "bfloat16", "complex64"])
    tensors = st.builds(Made, st.sampled_from(SHAPES), kinds,
                        _rarely("plain", "transposed", "sliced", "expanded", "conjugate", "negative"), st.integers(0, 3))
    leaves = st.one_of(tensors, st.sampled_from([None, 3, 2.5, float("nan"), True, -0.0]), st.builds(Common, tensors))
    return st.recursive(leaves, lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "step", "param", 7, (1, 2)]), inner, max_size=2)), max_leaves=4)


@st.composite
def _modules(draw: st.DrawFn, hooked: bool) -> tuple[Module, ...]:
    names = _hooks_of_modules if hooked else st.just(())
    modules = [Module(extra=draw(_rarely((), (None,), ({"seen": Made((3,))},))), hooks=draw(names))]
    for number in range(1, draw(st.sampled_from([2, 2, 3, 4]))):
        # Modules are shared if they have no children, so that none is below itself.
        alone = [other for other in range(1, number) if modules[other].shares is None and all(one.parent != other for one in modules)]
        shares = draw(_rarely(None, *alone)) if alone else None
        shared = {one.shares for one in modules}
        parents = [other for other in range(number) if modules[other].shares is None and other not in shared and other != shares]
        extra = draw(_rarely((), ([1.5, 2],), (Made((2,), "float64"),), ({"peaks": Made((3,)), "names": ("a", "b")},),
                              ({"peaks": Common(Made((3,)))},), ([Common(Made((3,)))],)))
        modules.append(Module(draw(st.sampled_from(parents)), shares, () if shares is not None else extra,
                              () if shares is not None else draw(names)))
    return tuple(modules)


@st.composite
def _slots(draw: st.DrawFn, modules: tuple[Module, ...]) -> tuple[Slot, ...]:
    own = [number for number, one in enumerate(modules) if one.shares is None]
    slots: list[Slot] = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["parameter"] * 5 + ["buffer"] * 3 + ["transient"])) if number else "parameter"
        others = [other for other, slot in enumerate(slots) if slot.kind == kind and slot.tie is None]
        tie = draw(_rarely(None, "attribute", "data")) if others else None
        module = draw(st.sampled_from(own))
        if tie is not None:
            other = draw(st.sampled_from(others))
            slots.append(dataclasses.replace(slots[other], module=module, tie=(tie, other)))
            continue
        if kind == "parameter":
            dtype = draw(_rarely("float32", "bfloat16", "float64", "complex64"))
            look = draw(_rarely("plain", "transposed", "sliced"))
        else:
            dtype = draw(st.sampled_from(["float32", "int64", "bool", "complex64", "float32", "uint8", "float16"]))
            looks = {"complex64": ["conjugate"], "float32": ["negative"]}.get(dtype, [])
            look = draw(_rarely("plain", "transposed", "sliced", "expanded", *looks))
        slots.append(Slot(module, kind, draw(st.sampled_from(SHAPES)), dtype, look, kind == "parameter" and draw(_yes_rarely)))
    return tuple(slots)


def _optimized(slots: tuple[Slot, ...]) -> list[int]:
    return [number for number, slot in enumerate(slots) if slot.kind == "parameter" and (slot.tie or ("",))[0] != "attribute"]


@st.composite
def _optimizers(draw: st.DrawFn, slots: tuple[Slot, ...], hooked: bool) -> tuple[Optimizer, ...]:
    left = [slot for slot in _optimized(slots) if not draw(_rarely(slots[slot].frozen, not slots[slot].frozen))]
    made = []
    for last in ([True] if draw(_rarely(True, False)) else [False, True]):
        kind = draw(st.sampled_from(sorted(build.OPTIMIZERS)))
        count = 1 if kind in build.ONE_GROUP else draw(st.sampled_from([1, 1, 2, 3]))
        members: list[list[int]] = [[] for _ in range(count)]
        for slot in list(left):
            if last or draw(st.booleans()):
                left.remove(slot)
                members[draw(st.integers(0, count - 1))].append(slot)
        late = draw(_rarely(count, *range(1, count)))  # the last ones, so that all sides have the same order
        options = _rarely((), (("lr", 0.25),), (("mark", (1, 2)),), (("scale", Made(())),), (("scale", Common(Made(()))),),
                          (("scale", (Common(Made(())), 1)),))
        groups = tuple(Group(tuple(some), draw(options), place >= late) for place, some in enumerate(members))
        mine = [slot for some in members for slot in some]
        entries = tuple(draw(st.lists(st.tuples(st.sampled_from(mine), st.sampled_from(NAMES), _values()), max_size=2))
                        ) if mine and draw(_rarely(False, True)) else ()
        # Adagrad takes the first entry of a state that it loads for that of a parameter.
        unowned = tuple(draw(st.dictionaries(st.sampled_from(["clock", "step", "a/b"]), _values(), max_size=2)).items()
                        ) if draw(_yes_rarely) and kind != "Adagrad" else ()
        made.append(Optimizer(kind, groups, entries, unowned, draw(_hooks_of_optimizers) if hooked else ()))
    return tuple(made)


@st.composite
def _steps(draw: st.DrawFn, slots: tuple[Slot, ...], most: int) -> tuple[tuple[int, ...], ...]:
    trainable = [slot for slot in _optimized(slots) if not slots[slot].frozen]
    steps = []
    for _ in range(draw(st.integers(0, most))):
        steps.append(tuple(slot for slot in trainable if not draw(_rarely(False, True))))
    return tuple(steps)


@st.composite
def _target(draw: st.DrawFn, source: Side) -> Side:
    """Another seed and history, and now and then another structure."""
    slots = []
    # Fused optimizers ignore strides, and torch loads states with those of the source.
    fused = any("fused" in one.kind for one in source.optimizers)
    for slot in source.slots:
        change = draw(st.sampled_from([""] * 12 + ["look", "tie", "frozen"]))
        if change == "look" and not (slot.kind == "parameter" and fused):
            slot = dataclasses.replace(slot, look=draw(st.sampled_from(["plain", "transposed", "sliced"])))
        elif change == "tie" and (slot.tie or ("",))[0] == "data":
            slot = dataclasses.replace(slot, tie=None)
        elif change == "frozen" and slot.kind == "parameter":
            slot = dataclasses.replace(slot, frozen=not slot.frozen)
        slots.append(slot)
    optimizers = []
    for one in source.optimizers:
        late = draw(_rarely(len(one.groups), *range(1, len(one.groups))))
        groups = tuple(dataclasses.replace(group, options=draw(_rarely(group.options, (), (("lr", 0.5),), (("other", [3]),))),
                                           late=place >= late) for place, group in enumerate(one.groups))
        mine = [slot for group in groups for slot in group.members]
        others = [tuple((slot, name, Made((2,))) for slot, name, _ in one.entries)] if one.entries else []
        stale = [((mine[0], "stale", 1),)] if mine and draw(_yes_rarely) else []
        entries = draw(_rarely(one.entries, (), *others, *stale))
        stale_ones = (("stale", {"a": 1}),) if one.kind != "Adagrad" else ()
        unowned = draw(_rarely(one.unowned, (), stale_ones, tuple((key, Made((2,))) for key, _ in one.unowned)))
        optimizers.append(Optimizer(one.kind, groups, entries, unowned, draw(_rarely(one.hooks, ()))))
    modules = tuple(dataclasses.replace(module, extra=(draw(st.sampled_from([[], None])),) if draw(st.booleans()) else module.extra)
                    if module.extra else module for module in source.modules)
    modules = tuple(dataclasses.replace(module, hooks=draw(_rarely(module.hooks, ()))) for module in modules)
    steps = () if draw(st.booleans()) else draw(_steps(tuple(slots), 2))
    return Side(modules, tuple(slots), tuple(optimizers), steps, 17, draw(_rarely(source.default_dtype, "float32")))


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    hooked = draw(_rarely(False, True))
    modules = draw(_modules(hooked))
    slots = draw(_slots(modules))
    source = Side(modules, slots, draw(_optimizers(slots, hooked)), draw(_steps(slots, 3)), 1, draw(_rarely("float32", "float64")))
    return Recipe(source, draw(_target(source)), draw(_rarely("", "meta", "float64")))
