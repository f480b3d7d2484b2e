# SPDX-License-Identifier: Apache-2.0
"""For those who publish and restore state that a framework keeps in its own way.

Entries tell which part of which tensor this rank has: an adapter makes them from what it finds in the framework, publishes them
by publish_entries(), and restores others by restore_entries(). Tensors move between any two layouts. Values, such as options of
groups, travel as they are; a restore gives them to the adapter, which sees them before a byte is written. Sources and targets
find each other by keys: what shardwire.torch publishes of a model has its parameters under the state PARAM, its buffers under
BUFFER, the options of a parameter's group under GROUP, and other states under their names.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Union

import torch

from .. import Inventory, Progress, Publication, Restore, Session, TensorKey
from .._types import Absent, Replicas, Seconds, Snapshot, Verify
from ._awaiting import Deadline
from ._catalog import entries_of
from ._dtypes import dtype_of
from ._entries import BUFFER, GROUP, PARAM, Entries
from ._extra import received_extra
from ._fsdp1 import in_shard
from ._layouts import Local, Ranks, local_of, ranks_of
from ._model import synchronize
from ._moving import Look, Published, RestoreResult, Target, absence_of, restore
from ._optimizers import groups_differ, options, step_device
from ._state_dict import flat_state_dict
from ._values import from_value, like, to_value, value_of

__all__ = ["BUFFER", "GROUP", "PARAM", "Deadline", "Entries", "Local", "Ranks", "RestoreResult", "Wanted", "dtype_of", "entries_of",
           "flat_state_dict", "groups_differ", "in_shard", "like", "local_of", "options", "publish_entries", "ranks_of",
           "restore_entries", "step_device", "to_value", "value_of"]

Wanted = Union[Entries, Callable[[Inventory], Entries]]
"""What a restore overwrites, or what makes that once the publications are known: it may create states that are missing."""


def publish_entries(session: Session, entries: Entries, *, step: int, name: str = "torch", snapshot: Snapshot = "none",
                    extra: Mapping[str, Any] | None = None, ranks: Ranks | None = None) -> Publication:
    """Makes the entries readable by peers. Every rank that has some calls it.

    The publication keeps the memory of the tensors, and lasts until it is retired or dropped. `ranks`: numbers of the ranks in the
    layouts; default: those of the default process group. Else as shardwire.torch.publish().
    """
    return session.publish(entries.published_catalog(ranks_of(session, ranks), extra), step=step, name=name, snapshot=snapshot)


@torch.no_grad()
def restore_entries(session: Session, wanted: Wanted, *, step: int | None = None, name: str = "torch", timeout: Seconds = 60,
                    verify: Verify = "generation", absent: Mapping[str, Absent] | None = None,
                    progress: Callable[[Progress], object] | None = None, ranks: Ranks | None = None, replicas: Replicas = "first",
                    staging_bytes: int = 256 << 20, check: Callable[[Mapping[TensorKey, Any]], None] | None = None
                    ) -> tuple[RestoreResult, dict[TensorKey, Any]]:
    """Overwrites the tensors, and gives the values, which the caller applies.

    Waits until all publishers of the step are there; without a step the newest that all have published counts. `check` sees the
    values before a byte is written, and raises if they are wrong. `ranks`: as in publish_entries(). Raises LayoutMismatch,
    before a byte is written, if types or shapes differ or parts are missing; else as shardwire.torch.restore_into().
    """
    ranks = ranks_of(session, ranks)
    values: dict[TensorKey, Any] = {}

    def target_of(inventory: Inventory, until: Deadline) -> tuple[Target, Look]:
        entries = wanted if isinstance(wanted, Entries) else wanted(inventory)
        target = Target(entries, ranks, Published(inventory), {key: absence_of(key, absent) or "error" for key in entries.tensors})
        for key in entries.values:
            target.catalog.add_value(key.fqn, key.state, absent="skip" if absence_of(key, absent) == "skip" else "error")

        def look(moving: Restore) -> dict[str, Any]:
            received = moving.values()
            values.update((key, from_value(value)) for key, value in received.items() if key in entries.values)
            if check is not None:
                check(values)
            synchronize(local.tensor for local in entries.tensors.values())
            return received_extra(received)

        return target, look

    return restore(session, target_of, name=name, step=step, timeout=timeout, verify=verify, replicas=replicas,
                   staging_bytes=staging_bytes, progress=progress), values
