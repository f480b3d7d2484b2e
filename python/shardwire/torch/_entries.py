# SPDX-License-Identifier: Apache-2.0
"""Tensors that a framework keeps in its own way: published and restored by name."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Union

import torch
from torch import nn

from .. import Catalog, Inventory, Progress, Publication, Restore, Session, TensorKey
from .._types import Absent, Replicas, Seconds, Snapshot, Verify
from ._absent import OneElement, absence_of
from ._awaiting import Deadline
from ._catalog import PARAM, by_object, parts_of
from ._extra import extra_values, received_extra, request_extra
from ._layouts import Local, Ranks, ranks_of
from ._model import add_tensor, synchronize
from ._moving import RestoreResult, move
from ._restore import Published, require_alike
from ._values import from_value, to_value


@dataclasses.dataclass
class Entries:
    """This rank's parts of tensors, and objects that are equal on all ranks that have them."""

    tensors: dict[TensorKey, Local] = dataclasses.field(default_factory=dict)
    values: dict[TensorKey, Any] = dataclasses.field(default_factory=dict)
    """To be published. Of a restore only the keys count."""
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    """Further names of parameters, each with the name under which its entries are."""


Wanted = Union[Entries, Callable[[Inventory], Entries]]
"""What a restore overwrites, or what makes that once the publications are known: it may create states that are missing."""


def entries_of(model: nn.Module, ranks: Ranks) -> Entries:
    """The parameters and persistent buffers of a model, each under one of its names.

    The `source` of a parameter's part is the tensor under which optimizers keep its state.
    """
    entries, parts = Entries(), parts_of(model, [], ranks)
    for fqn, aliases, state, local in parts.named(ranks):
        entries.tensors[TensorKey(fqn, state)] = local
        entries.aliases.update(dict.fromkeys(aliases, fqn))
    for one in parts.parameters:
        entries.tensors[TensorKey(one.fqn, PARAM)] = dataclasses.replace(one.local, source=one.key)
    return entries


def publish_entries(session: Session, entries: Entries, *, step: int, name: str = "torch", snapshot: Snapshot = "none",
                    extra: Mapping[str, Any] | None = None, ranks: Ranks | None = None) -> Publication:
    """Makes the entries readable by peers. Every rank that has some calls it.

    The publication keeps the tensors, and lasts until it is retired or dropped. `ranks`: numbers of the ranks in the layouts;
    default: those of the default process group. Else as shardwire.torch.publish().
    """
    ranks = ranks or ranks_of(session)
    catalog = Catalog(ranks.own, ranks.count)
    owner = [local.source for local in entries.tensors.values()] + [local.tensor for local in entries.tensors.values()]
    for key, local in entries.tensors.items():
        add_tensor(catalog, key, local, owner)
    for fqns, state, value in by_object(entries.values.items()):
        catalog.add_values(fqns, state, to_value(value))
    for key, value in extra_values(extra).items():
        catalog.add_value(key.fqn, key.state, value)
    for alias, fqn in entries.aliases.items():
        catalog.alias(alias, fqn)
    synchronize(local.tensor for local in entries.tensors.values())
    return session.publish(catalog, step=step, name=name, snapshot=snapshot)


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
    until = Deadline(timeout)
    ranks = ranks or ranks_of(session)
    inventory = session.await_step(name, step, until.left())
    entries = wanted if isinstance(wanted, Entries) else wanted(inventory)
    one_element = OneElement()
    catalog = _wanted_catalog(entries, inventory, ranks, absent, one_element)
    received: dict[TensorKey, Any] = {}
    mine: dict[TensorKey, Any] = {}

    def look(moving: Restore) -> None:
        received.update(moving.values())
        mine.update((key, from_value(value)) for key, value in received.items() if key in entries.values)
        if check is not None:
            check(mine)
        synchronize(local.tensor for local in entries.tensors.values())

    report = move(session, catalog, inventory, until, look, name=name, verify=verify, replicas=replicas, staging_bytes=staging_bytes,
                  one_element=one_element, progress=progress)
    return RestoreResult(inventory.step, received_extra(received), report), mine


def _wanted_catalog(entries: Entries, inventory: Inventory, ranks: Ranks, absent: Mapping[str, Absent] | None, one_element: OneElement
                    ) -> Catalog:
    catalog = Catalog(ranks.own, ranks.count)
    owner = [local.tensor for local in entries.tensors.values()]
    require_alike(entries.tensors.items(), Published(inventory))
    for key, local in entries.tensors.items():
        add_tensor(catalog, key, local, owner, one_element.ask(key, local, absence_of(key, absent) or "error"))
    for key in entries.values:
        catalog.add_value(key.fqn, key.state, absent="skip" if absence_of(key, absent) == "skip" else "error")
    request_extra(catalog, inventory.values)
    for alias, fqn in entries.aliases.items():
        catalog.alias(alias, fqn)
    return catalog
