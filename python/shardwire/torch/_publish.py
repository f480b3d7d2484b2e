# SPDX-License-Identifier: Apache-2.0
"""Publishing a model with its optimizers."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from torch import nn

from .. import Error, Publication, Session, TensorKey, Unsupported
from .._types import Snapshot
from ._catalog import GROUP, ModelCatalog, model_catalog
from ._layouts import Ranks
from ._optimizers import Optimizers, options
from ._values import to_value

EXTRA, EXTRA_PER_RANK = "extra/", "extra_per_rank/"
"""Prefixes of values of the whole job, and of those that each rank has for itself."""


class PerRank:
    """A value in `extra` that each rank keeps for itself, such as the state of a random generator or of a data loader."""

    def __init__(self, value: Any) -> None:
        self.value = value


def ranks_of(session: Session, ranks: int | Sequence[int] | None) -> Ranks:
    return Ranks(session.rank, session.world_size, ranks)


def _values(held: ModelCatalog, extra: Mapping[str, Any] | None) -> dict[TensorKey, Any]:
    values = {key: to_value(value) for key, value in held.values.items()}
    groups: dict[int, Any] = {}
    for one in held.optimized:
        group = groups.get(id(one.group))
        if group is None:
            group = groups[id(one.group)] = {name: to_value(value) for name, value in options(one.group)}
        values[TensorKey(one.parameter.fqn, GROUP)] = group
    for name, value in (extra or {}).items():
        each = isinstance(value, PerRank)
        try:
            values[TensorKey("", (EXTRA_PER_RANK if each else EXTRA) + name)] = to_value(value.value if each else value)
        except Error as error:
            raise type(error)(f"extra '{name}': {error}") from error.__cause__
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
