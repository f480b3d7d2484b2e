# SPDX-License-Identifier: Apache-2.0
"""What a model with its optimizers publishes."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Sequence

import torch

from .. import Catalog, TensorKey
from ._catalog import Catalogs, ModelCatalog
from ._entries import GROUP, values_of
from ._extra import OF_ALL, extra_values
from ._hooks import beside_states, changes, saved
from ._layouts import Ranks
from ._lists import tensors_of
from ._model import modules
from ._optimizers import Optimized, empty_groups, entries, entry_name, options
from ._shared import STATES, VALUES, tie_name, ties


def _values(held: ModelCatalog, optimizers: Sequence[torch.optim.Optimizer], state_dict: Mapping[str, Any] | None,
            others: Mapping[str, Any], extra: Mapping[str, Any] | None) -> dict[TensorKey, Any]:
    values = held.present_values()
    groups = {id(one.group): one.group for one in held.optimized}
    present = {number: dict(options(group)) for number, group in groups.items()}
    values.update((key, present[id(one.group)]) for key, one in zip(held.group_keys, held.optimized))
    for name, empty in empty_groups(optimizers):
        values[TensorKey("", name)] = dict(options(empty))
    for state, other in held.ties:
        values[TensorKey("", tie_name(STATES, state, other))] = None
    for number, key, entry in entries(optimizers):
        values[TensorKey("", entry_name(number, key))] = entry
    kept = {key: module.get_extra_state() for key, module in held.extra_states} if state_dict is None else {
        key: state_dict[key.fqn] for key, _ in held.extra_states if key.fqn in state_dict}
    values.update({**kept, **{TensorKey("", name): other for name, other in others.items()}})
    for name in (*_ties_in_optimizers(held, optimizers), *ties(kept.items()), *ties(
            (TensorKey("", OF_ALL + name), value) for name, value in (extra or {}).items())):
        values[TensorKey("", name)] = None
    return {**values_of(values), **extra_values(extra)}


def _ties_in_optimizers(held: ModelCatalog, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[str]:
    for number, optimizer in enumerate(optimizers):
        mine = [one for one in held.optimized if one.optimizer is optimizer]
        groups: dict[int, tuple[TensorKey, dict[str, Any]]] = {}
        for one in mine:
            if id(one.group) not in groups:
                groups[id(one.group)] = TensorKey(one.parameter.fqn, GROUP), one.group
        empty = [(TensorKey("", name), group) for name, group in empty_groups(optimizers)
                 if any(group is one for one in optimizer.param_groups)]
        yield from ties((key, dict(options(group))) for key, group in (*groups.values(), *empty))
        names: set[str] = {one.parameter.fqn for one in mine if not one.parameter.shares_state} if held.values else set()
        yield from ties((*((key, value) for key, value in held.present_values().items() if key.fqn in names),
                         *((TensorKey("", entry_name(number, key)), entry) for _, key, entry in entries([optimizer]))),
                        lambda: _state_tensors(mine))


def _state_tensors(mine: Sequence[Optimized]) -> Iterator[tuple[TensorKey, torch.Tensor]]:
    """The first of several with one memory comes last."""
    for one in reversed(mine):
        for state, kept in reversed(one.state.items()):
            yield from ((TensorKey(one.parameter.fqn, name), tensor) for name, tensor in tensors_of(state, kept).items())


def catalog_of(catalogs: Catalogs, ranks: Ranks, extra: Mapping[str, Any] | None) -> Catalog:
    """What this rank publishes."""
    listed = catalogs.optimizers
    named = modules(catalogs.model)
    state_dict = saved(named)
    others = {**dict(changes(named, state_dict)), **dict(beside_states(listed))}
    # Values cannot be taken out of a catalog, so those with other names of values are other catalogs.
    names = (*sorted(extra or {}), *others, *(entry_name(number, key) for number, key, _ in entries(listed)))
    held = catalogs.publishing(ranks, ("publish", names))
    values = _values(held, listed, state_dict, others, extra)
    tied = tuple(key.state for key in values if key.fqn == "" and key.state.startswith(VALUES))
    if tied:
        held = catalogs.publishing(ranks, ("publish", (*names, *tied)))
    held.set_values(values)
    return held.catalog
