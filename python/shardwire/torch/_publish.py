# SPDX-License-Identifier: Apache-2.0
"""What a model with its optimizers publishes."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch

from .. import Catalog, Error, TensorKey
from ._catalog import GROUP, Catalogs, ModelCatalog
from ._extra import extra_values
from ._hooks import beside_states, changes, saved
from ._layouts import Ranks
from ._model import modules
from ._optimizers import empty_groups, entries, entry_name, options, tie_name
from ._values import to_value


def _values(held: ModelCatalog, optimizers: Sequence[torch.optim.Optimizer], state_dict: Mapping[str, Any] | None,
            others: Mapping[str, Any], extra: Mapping[str, Any] | None) -> dict[TensorKey, Any]:
    values = {key: to_value(value) for key, value in held.values.items()}
    groups: dict[int, Any] = {}
    for one in held.optimized:
        group = groups.get(id(one.group))
        if group is None:
            group = groups[id(one.group)] = {name: to_value(value) for name, value in options(one.group)}
        values[TensorKey(one.parameter.fqn, GROUP)] = group
    for name, empty in empty_groups(optimizers):
        values[TensorKey("", name)] = {option: to_value(value) for option, value in options(empty)}
    for state, other in held.ties:
        values[TensorKey("", tie_name(state, other))] = None
    for number, key, entry in entries(optimizers):
        values[TensorKey("", entry_name(number, key))] = to_value(entry)
    kept = {key: module.get_extra_state() for key, module in held.extra_states()} if state_dict is None else {
        key: state_dict[key.fqn] for key, _ in held.extra_states() if key.fqn in state_dict}
    for key, value in (*kept.items(), *((TensorKey("", name), other) for name, other in others.items())):
        try:
            values[key] = to_value(value)
        except Error as error:
            raise type(error)(f"{key.fqn or key.state}: {error}") from error.__cause__
    values.update(extra_values(extra))
    return values


def catalog_of(catalogs: Catalogs, ranks: Ranks, extra: Mapping[str, Any] | None) -> Catalog:
    """What this rank publishes."""
    listed = catalogs.optimizers
    named = modules(catalogs.model)
    state_dict = saved(named)
    others = {**dict(changes(named, state_dict)), **dict(beside_states(listed))}
    # Values cannot be taken out of a catalog, so those with other names of values are other catalogs.
    names = (*sorted(extra or {}), *others, *(entry_name(number, key) for number, key, _ in entries(listed)))
    held = catalogs.of(ranks, wanting=False, key=("publish", names))
    held.set_values(_values(held, listed, state_dict, others, extra))
    return held.catalog
