# SPDX-License-Identifier: Apache-2.0
"""Tensors that a framework keeps in its own way: published and restored by name."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping

import torch

from .. import Catalog, Inventory, LayoutMismatch, Progress, Publication, Session, TensorKey
from .._types import Absent, Replicas, Seconds, Snapshot, Verify
from ._absent import OneElement, absence_of
from ._awaiting import Deadline, reading
from ._dtypes import name_of
from ._extra import extra_values, received_extra, request_extra
from ._layouts import Local, Ranks, ranks_of
from ._model import add_tensor
from ._restore import RestoreResult
from ._values import from_value, to_value


@dataclasses.dataclass
class Entries:
    """This rank's parts of tensors, and objects that are equal on all ranks that have them."""

    tensors: dict[TensorKey, Local] = dataclasses.field(default_factory=dict)
    values: dict[TensorKey, Any] = dataclasses.field(default_factory=dict)
    """To be published. Of a restore only the keys count."""
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    """Further names of parameters, each with the name under which its entries are."""


def _synchronize(entries: Entries) -> None:
    """Ends queued work on devices, whose results are read or overwritten next."""
    for device in {local.tensor.device for local in entries.tensors.values() if local.tensor.is_cuda}:
        torch.cuda.synchronize(device)


def publish_entries(session: Session, entries: Entries, *, step: int, name: str, snapshot: Snapshot,
                    extra: Mapping[str, Any] | None = None, ranks: Ranks | None = None) -> Publication:
    """`ranks`: numbers of the ranks in the layouts; default: see ranks_of()."""
    ranks = ranks or ranks_of(session)
    catalog = Catalog(ranks.own, ranks.count)
    owner = [local.source for local in entries.tensors.values()] + [local.tensor for local in entries.tensors.values()]
    for key, local in entries.tensors.items():
        add_tensor(catalog, key, local, owner)
    for key, value in entries.values.items():
        catalog.add_value(key.fqn, key.state, to_value(value))
    for key, value in extra_values(extra).items():
        catalog.add_value(key.fqn, key.state, value)
    for alias, fqn in entries.aliases.items():
        catalog.alias(alias, fqn)
    _synchronize(entries)
    return session.publish(catalog, step=step, name=name, snapshot=snapshot)


@torch.no_grad()
def restore_entries(session: Session, entries: Entries, inventory: Inventory, *, name: str, deadline: Seconds,
                    verify: Verify = "none", absent: Mapping[str, Absent] | None = None,
                    progress: Callable[[Progress], object] | None = None, ranks: Ranks | None = None, replicas: Replicas = "first",
                    staging_bytes: int = 256 << 20, check: Callable[[Mapping[TensorKey, Any]], None] | None = None
                    ) -> tuple[RestoreResult, dict[TensorKey, Any]]:
    """Overwrites the tensors, and gives the values, which the caller applies. `inventory`: of the publications to read.

    `check` sees the values before a byte is written, and raises if they are wrong. Raises LayoutMismatch, before a byte is
    written, if types or shapes differ or parts are missing.
    """
    until = Deadline(deadline)
    ranks = ranks or ranks_of(session)
    wanted = Catalog(ranks.own, ranks.count)
    owner = [local.tensor for local in entries.tensors.values()]
    published, one_element = inventory.tensors, OneElement()
    for key, local in entries.tensors.items():
        theirs = published.get(key) or published.get(TensorKey(inventory.aliases.get(key.fqn, ""), key.state))
        dtype = name_of(local.tensor.dtype)
        if theirs is not None and (theirs.dtype, theirs.shape) != (dtype, local.shape):
            raise LayoutMismatch(f"{key.fqn}:{key.state}: source has {theirs.dtype} {theirs.shape}, target wants {dtype} {local.shape}")
        add_tensor(wanted, key, local, owner, one_element.ask(key, local, absence_of(key, absent) or "error"))
    for key in entries.values:
        wanted.add_value(key.fqn, key.state, absent="skip" if absence_of(key, absent) == "skip" else "error")
    request_extra(wanted, inventory.values)
    for alias, fqn in entries.aliases.items():
        wanted.alias(alias, fqn)
    with reading(session, name, inventory):
        restore = session.restore(wanted, name=name, step=inventory.step, deadline=until.left(), verify=verify, replicas=replicas,
                                  stop_at_values=True, discovery_grace=0, staging_bytes=staging_bytes)
        restore.wait_values()
    received = restore.values()
    mine = {key: from_value(value) for key, value in received.items() if key in entries.values}
    if check is not None:
        check(mine)
    _synchronize(entries)
    with reading(session, name, inventory):
        restore.proceed()
        report = restore.wait(progress)
    one_element.zero(report.skipped)
    return RestoreResult(inventory.step, received_extra(received), report), mine
