# SPDX-License-Identifier: Apache-2.0
"""Publishing a model with its optimizers."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import nn

from .. import Error, Publication, Session, TensorKey
from .._types import Snapshot
from ._catalog import GROUP, ModelCatalog, model_catalog, without_collections
from ._extra import extra_values
from ._layouts import ranks_of
from ._optimizers import Optimizers, empty_groups, entries, entry_name, list_of, options, tie_name
from ._values import to_value


def _values(held: ModelCatalog, optimizers: Sequence[torch.optim.Optimizer], extra: Mapping[str, Any] | None) -> dict[TensorKey, Any]:
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
    for key, module in held.extra_states():
        try:
            values[key] = to_value(module.get_extra_state())
        except Error as error:
            raise type(error)(f"{key.fqn}: {error}") from error.__cause__
    values.update(extra_values(extra))
    return values


@without_collections()
def publish(session: Session, model: nn.Module, optimizers: Optimizers = None, *, step: int, name: str = "torch",
            snapshot: Snapshot = "none", extra: Mapping[str, Any] | None = None, ranks: int | Sequence[int] | None = None,
            keep: int = 0, buddies: int = 0, buddy_bytes_per_second: int = 0) -> Publication:
    """Makes parameters, persistent buffers, optimizer state and options of a model readable by peers.

    Every rank that has a part of the model calls it. With snapshot "none" nothing of it may change until the publication is
    retired; "copy" lets training go on at once. `extra` maps names to other state: schedulers, grad scalers, counters, in
    PerRank what each rank keeps for itself. `ranks`: the members of the session that are the ranks of the layouts, in
    order, or their count; default: the ranks of the default process group, else all members. `keep`: snapshots that the keeper of
    this host holds beyond the end of this process. `buddies`: copies of each on other hosts, which members there make at up to
    `buddy_bytes_per_second`. See Session.publish().
    """
    listed = list_of(optimizers)
    # Values cannot be taken out of a catalog, so those with other names of values are other catalogs.
    names = (*sorted(extra or {}), *(entry_name(number, key) for number, key, _ in entries(listed)))
    held = model_catalog(model, optimizers, ranks_of(session, ranks), wanting=False, key=("publish", names))
    held.set_values(_values(held, listed, extra))
    return session.publish(held.catalog, step=step, name=name, snapshot=snapshot, keep=keep, buddies=buddies,
                           buddy_bytes_per_second=buddy_bytes_per_second)
