# SPDX-License-Identifier: Apache-2.0
"""Publishing a model with its optimizers."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from torch import nn

from .. import Publication, Session, TensorKey, Unsupported
from .._types import Snapshot
from ._catalog import GROUP, ModelCatalog, model_catalog
from ._extra import extra_values
from ._layouts import ranks_of
from ._optimizers import Optimizers, options
from ._values import to_value


def _values(held: ModelCatalog, extra: Mapping[str, Any] | None) -> dict[TensorKey, Any]:
    values = {key: to_value(value) for key, value in held.values.items()}
    groups: dict[int, Any] = {}
    for one in held.optimized:
        group = groups.get(id(one.group))
        if group is None:
            group = groups[id(one.group)] = {name: to_value(value) for name, value in options(one.group)}
        values[TensorKey(one.parameter.fqn, GROUP)] = group
    values.update(extra_values(extra))
    return values


def publish(session: Session, model: nn.Module, optimizers: Optimizers = None, *, step: int, name: str = "torch",
            snapshot: Snapshot = "none", extra: Mapping[str, Any] | None = None, ranks: int | Sequence[int] | None = None,
            keep: int = 0, buddies: int = 0) -> Publication:
    """Makes parameters, persistent buffers, optimizer state and options of a model readable by peers.

    Every rank that has a part of the model calls it. With snapshot "none" nothing of it may change until the publication is
    retired; "copy" lets training go on at once. `extra` maps names to other state: schedulers, grad scalers, counters, in
    PerRank what each rank keeps for itself. `ranks`: the ranks of the session that the layouts number, in order, or their
    count; default: all. `keep` and `buddies` are not implemented yet.
    """
    if keep or buddies:
        raise Unsupported("keep and buddies are not implemented")
    # Values cannot be taken out of a catalog, so those with other extras are other catalogs.
    names = tuple(sorted(extra or {}))
    held = model_catalog(model, optimizers, ranks_of(session, ranks), wanting=False, key=("publish", names))
    held.set_values(_values(held, extra))
    return session.publish(held.catalog, step=step, name=name, snapshot=snapshot)
