# SPDX-License-Identifier: Apache-2.0
"""A model with its optimizers, published and restored."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from torch import nn

from .. import Catalog, Progress, Publication, Session
from .._types import Absent, Replicas, Seconds, Snapshot, Verify
from ._catalog import Catalogs, without_collections
from ._latest import Latest
from ._layouts import default_ranks, ranks_of
from ._moving import RestoreResult
from ._optimizers import Optimizers
from ._publish import catalog_of as published_catalog
from ._restore import restore_model

_STAGING_BYTES = 256 << 20


class State:
    """A model with its optimizers: what ranks publish and restore.

    Keeps what it looked up for the next call, which takes less time while all tensors stay where they are. New modules,
    parameters, states, groups and memory are noticed. `ranks`: the members of the session that are the ranks of the layouts, in
    order, or their count; default: the ranks of the default process group, else all members. Not for several threads at once.
    """

    def __init__(self, model: nn.Module, optimizers: Optimizers = None, *, ranks: int | Sequence[int] | None = None) -> None:
        self._catalogs = Catalogs(model, optimizers)
        self._ranks = ranks
        self._latest: dict[str, Latest] = {}

    @without_collections()
    def publish(self, session: Session, *, step: int, name: str = "torch", snapshot: Snapshot = "none",
                extra: Mapping[str, Any] | None = None, keep: int = 0, buddies: int = 0, buddy_bytes_per_second: int = 0
                ) -> Publication:
        """Makes parameters, persistent buffers, optimizer state and options of the model readable by peers.

        Every rank that has a part of the model calls it. With snapshot "none" nothing of it may change until the publication is
        retired; "copy" lets training go on at once. The next step under the same name replaces this one, and peers see either,
        never neither. The publication lasts until it is retired or this object is gone. `extra` maps names to other state:
        schedulers, grad scalers, counters, in PerRank what each rank keeps for itself. `keep`: snapshots that the keeper of this
        host holds beyond the end of this process. `buddies`: copies of each on other hosts, which members there make at up to
        `buddy_bytes_per_second`. See Session.publish().
        """
        catalog = published_catalog(self._catalogs, ranks_of(session, self._ranks), extra)
        options = {"keep": keep, "buddies": buddies, "buddy_bytes_per_second": buddy_bytes_per_second}
        latest = self._latest.get(name)
        if latest is None or latest.session is not session or latest.options != options:
            latest = self._latest[name] = Latest(session, name, **options)
        return latest.publish(catalog, step, snapshot)

    def restore(self, session: Session, *, step: int | None = None, name: str = "torch", timeout: Seconds = 60,
                verify: Verify = "generation", absent: Mapping[str, Absent] | None = None,
                progress: Callable[[Progress], object] | None = None, replicas: Replicas = "first",
                staging_bytes: int = _STAGING_BYTES) -> RestoreResult:
        """Overwrites model and optimizers with the state that peers published, in place.

        Waits until all publishers are there; without a step the newest that all have published counts. Creates optimizer states
        that this rank lacks, in the order of param_groups, and sets the options of parameter groups. A parameter that the
        sources' optimizers never stepped has no state, as after load_state_dict(). Extra state of modules is set last. `absent`
        maps globs of "name" or "name:state" to "skip" or "zero", for tensors that no peer has, or that modules here lack; scalars
        such as `step` are skipped by both. `replicas`: see Session.restore(); replicas of one tensor drift apart in training, so
        each tensor comes from one holder. After an error the optimizers have the states that they had before. Raises
        LayoutMismatch, before a byte is written, if types, shapes or options differ, or either side lacks parts; Withdrawn if a
        publication ends meanwhile; StepMismatch, TimedOut, PeerLost as Session.restore().
        """
        return restore_model(session, self._catalogs, ranks_of(session, self._ranks), absent, step=step, name=name, timeout=timeout,
                             verify=verify, progress=progress, replicas=replicas, staging_bytes=staging_bytes)

    @without_collections()
    def catalog(self, *, rank: int | None = None, world_size: int | None = None) -> Catalog:
        """The parameters, buffers and optimizer states of this rank, for `Session.publish`, `Session.restore` and `plan`.

        The same catalog as before while the tensors are the same, so that the library finds the plan of the last restore. The
        catalog keeps their memory alive. Options of parameter groups are not in it: see publish().
        """
        return self._catalogs.publishing(default_ranks(rank, world_size, self._ranks), "catalog").catalog


def publish(session: Session, model: nn.Module, optimizers: Optimizers = None, *, step: int, name: str = "torch",
            snapshot: Snapshot = "none", extra: Mapping[str, Any] | None = None, ranks: int | Sequence[int] | None = None,
            keep: int = 0, buddies: int = 0, buddy_bytes_per_second: int = 0) -> Publication:
    """State.publish() of a State that keeps nothing. The publication lasts until it is retired or dropped."""
    return State(model, optimizers, ranks=ranks).publish(session, step=step, name=name, snapshot=snapshot, extra=extra, keep=keep,
                                                         buddies=buddies, buddy_bytes_per_second=buddy_bytes_per_second)


def restore_into(session: Session, model: nn.Module, optimizers: Optimizers = None, *, step: int | None = None,
                 name: str = "torch", timeout: Seconds = 60, verify: Verify = "generation", absent: Mapping[str, Absent] | None = None,
                 progress: Callable[[Progress], object] | None = None, ranks: int | Sequence[int] | None = None,
                 replicas: Replicas = "first", staging_bytes: int = _STAGING_BYTES) -> RestoreResult:
    """State.restore() of a State that keeps nothing."""
    return State(model, optimizers, ranks=ranks).restore(session, step=step, name=name, timeout=timeout, verify=verify,
                                                         absent=absent, progress=progress, replicas=replicas,
                                                         staging_bytes=staging_bytes)


def catalog_of(model: nn.Module, optimizers: Optimizers = None, *, rank: int | None = None, world_size: int | None = None,
               ranks: int | Sequence[int] | None = None) -> Catalog:
    """State.catalog() of a State that keeps nothing."""
    return State(model, optimizers, ranks=ranks).catalog(rank=rank, world_size=world_size)
