# SPDX-License-Identifier: Apache-2.0
"""State of a trainer that belongs to no tensor: schedulers, grad scalers, counters, random generators."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping

from .. import Catalog, TensorKey
from ._values import from_value, value_of

OF_ALL, _PER_RANK = "extra/", "extra_per_rank/"
# Prefixes of values of the whole job, and of those that each rank has for itself.


class PerRank:
    """A value in `extra` that each rank keeps for itself, such as the state of a random generator or of a data loader."""

    def __init__(self, value: Any) -> None:
        self.value = value


def extra_values(extra: Mapping[str, Any] | None) -> dict[TensorKey, Any]:
    """What a publication has of `extra`."""
    return {TensorKey("", _PER_RANK + name if isinstance(value, PerRank) else OF_ALL + name):
            value_of(f"extra '{name}'", value.value if isinstance(value, PerRank) else value) for name, value in (extra or {}).items()}


def request_extra(wanted: Catalog, published: Iterable[TensorKey]) -> None:
    """Asks for all extra state that is published."""
    for key in published:
        if key.fqn == "" and key.state.startswith(OF_ALL):
            wanted.add_value("", key.state)
        elif key.fqn == "" and key.state.startswith(_PER_RANK):
            wanted.add_value("", key.state, agree="per_rank", absent="skip")


def received_extra(values: Mapping[TensorKey, Any], object_of: Callable[[TensorKey], Any] | None = None) -> dict[str, Any]:
    """Extra state by name, among values that were received."""
    object_of = object_of or (lambda key: from_value(values[key]))
    return {key.state[len(prefix):]: object_of(key) for key in values for prefix in (OF_ALL, _PER_RANK)
            if key.fqn == "" and key.state.startswith(prefix)}
