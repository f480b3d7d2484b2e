# SPDX-License-Identifier: Apache-2.0
"""Restoring a model with its optimizers in place."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.distributed.tensor.placement_types import Replicate
from torch.distributed.tensor.placement_types import Shard as TorchShard

from .. import Inventory, LayoutMismatch, Progress, Report, Session, TensorInfo, TensorKey
from .._types import Absent, Replicas, Seconds, Verify
from ._awaiting import Deadline, final_inventory
from ._catalog import BUFFER, GROUP, PARAM, Absences, ModelCatalog, model_catalog
from ._dtypes import dtype_of
from ._extra import received_extra, request_extra
from ._layouts import ranks_of
from ._model import reshard
from ._optimizers import Optimized, Optimizers, groups_differ, step_device
from ._values import from_value, like


@dataclasses.dataclass(frozen=True)
class RestoreResult:
    """What restore_into() returns."""

    step: int
    """The step of the publications."""
    extra: dict[str, Any]
    """The publishers' extra state by name; tensors are new ones of the host."""
    report: Report
    """Figures of the restore."""

    def as_dict(self) -> dict[str, Any]:
        """Step and figures as dicts and lists, for JSON."""
        return {"step": self.step, **self.report.as_dict()}


class Published:
    """What an inventory lists, read once."""

    def __init__(self, inventory: Inventory) -> None:
        self.tensors = inventory.tensors
        self.values = inventory.values
        self.aliases = inventory.aliases
        self.states: dict[str, dict[str, TensorInfo]] = {}
        """Tensors by the names of their parameter, then by state."""
        for key, info in self.tensors.items():
            self.states.setdefault(key.fqn, {})[key.state] = info
        for alias, fqn in self.aliases.items():
            if fqn in self.states:
                self.states.setdefault(alias, self.states[fqn])


def _new_state(one: Optimized, info: TensorInfo) -> torch.Tensor:
    key, dtype = one.parameter.key, dtype_of(info.dtype)
    if info.shape == one.parameter.local.shape and info.shape != ():
        return torch.empty_like(key.detach(), dtype=dtype)
    if info.shape == ():
        return torch.zeros((), dtype=dtype, device=step_device(one.group, key))
    if isinstance(key, DTensor):
        # A reduction of the parameter, as Adafactor has: dims that remain are sharded as before.
        shape, placements = tuple(key.shape), []
        for placement in key.placements:
            kept = isinstance(placement, TorchShard) and placement.dim < len(info.shape) and len(info.shape) == len(shape) and (
                info.shape[placement.dim] == shape[placement.dim])
            placements.append(placement if kept else Replicate())
        return empty_dtensor(*info.shape, dtype=dtype, device_mesh=key.device_mesh, placements=placements)
    return torch.empty(info.shape, dtype=dtype, device=key.device)


@contextlib.contextmanager
def _missing_states(found: Sequence[Optimized], published: Published) -> Iterator[None]:
    """Creates states that are missing. An error in the block removes them: the optimizer must not train on their bytes."""
    before = [(one, dict(one.state)) for one in found]
    try:
        _create_missing_states(found, published)
        yield
    except BaseException:
        for one, known in before:
            for name in list(one.state):
                if name not in known:
                    del one.state[name]
                elif known[name] is None:
                    one.state[name] = None
            if not one.state:
                one.optimizer.state.pop(one.parameter.key, None)
        raise


def _create_missing_states(found: Sequence[Optimized], published: Published) -> None:
    """In the order of param_groups, because gathers of torch follow the order of the state."""
    values: dict[str, list[str]] = {}
    for key in published.values:
        if key.fqn and key.state != GROUP:
            values.setdefault(key.fqn, []).append(key.state)
    for one in found:
        names = [one.parameter.fqn, *one.parameter.aliases]
        states = next((published.states[name] for name in names if name in published.states), {})
        wanted = {state: info for state, info in states.items() if state not in (PARAM, BUFFER)}
        others = [state for name in names for state in values.get(name, [])]
        # FSDP1 keeps no state for an original parameter without an element in this shard.
        if not wanted and not others or one.parameter.key.numel() == 0 and 0 not in one.parameter.local.shape:
            continue
        kept = one.optimizer.state[one.parameter.key]
        for state, info in wanted.items():
            if state not in kept or kept[state] is None:
                kept[state] = _new_state(one, info)
        for state in others:
            kept.setdefault(state, None)


def _require_alike(wanted: ModelCatalog, published: Published) -> None:
    """The library checks this too, but knows fewer of the names."""
    wrong = []
    for key, info in wanted.catalog.tensors().items():
        theirs = published.states.get(key.fqn, {}).get(key.state)
        if theirs is not None and theirs != info:
            wrong.append(f"{key.fqn}:{key.state}: source has {theirs.dtype} {theirs.shape}, target wants {info.dtype} {info.shape}")
    if wrong:
        raise LayoutMismatch(f"types or shapes differ: {'; '.join(wrong[:10])}{' ..' if len(wrong) > 10 else ''}")


def absence_of(key: TensorKey, absent: Mapping[str, Absent] | None) -> Absent | None:
    """What the first glob that matches "name" or "name:state" chooses; None without one."""
    for pattern, chosen in (absent or {}).items():
        if fnmatch.fnmatchcase(key.fqn, pattern) or fnmatch.fnmatchcase(f"{key.fqn}:{key.state}", pattern):
            return chosen
    return None


def _absences(absent: Mapping[str, Absent], published: Published) -> Absences:
    stateful = {fqn for fqn, states in published.states.items() if states.keys() - {PARAM, BUFFER}}

    def policy(key: TensorKey, shares: bool, scalar: bool) -> Absent:
        chosen = absence_of(key, absent)
        if chosen is not None:
            return chosen
        # A flat parameter has state for members that were never used; elsewhere they have none, which is the same as zeros.
        if shares and stateful and key.fqn not in stateful:
            return "skip" if scalar else "zero"
        return "error"

    return policy


def _request_values(wanted: ModelCatalog, listed: Published, policy: Absences) -> None:
    """Asks for states that are no tensors, for options of groups, and for all extra state."""
    published = set(listed.values)
    aliased = {TensorKey(alias, key.state) for alias, fqn in listed.aliases.items() for key in published if key.fqn == fqn}
    keys = [*wanted.values, *(TensorKey(one.parameter.fqn, GROUP) for one in wanted.optimized)]
    for key in keys:
        if key in published or key in aliased or policy(key, False, False) == "error":
            wanted.small.add_value(key.fqn, key.state)
    request_extra(wanted.small, listed.values)


@dataclasses.dataclass(frozen=True)
class _Values:
    """What a restore received besides tensors of more than one element, checked."""

    states: list[tuple[dict[str, Any], str, Any]]
    groups: list[tuple[dict[str, Any], dict[str, Any]]]
    shared: list[tuple[torch.Tensor, torch.Tensor]]
    extra: dict[str, Any]

    def apply(self) -> None:
        for state, name, value in self.states:
            state[name] = like(value, state.get(name))
        for group, options_of in self.groups:
            for option, value in options_of.items():
                group[option] = like(value, group.get(option))
        for tensor, received in self.shared:
            tensor.copy_(received)


def _checked(wanted: ModelCatalog, values: dict[TensorKey, Any], skipped: Sequence[TensorKey]) -> _Values:
    """Raises LayoutMismatch if parameters that share a group, or a state, received different ones."""
    by_fqn = {one.parameter.fqn: one for one in wanted.optimized}
    states = [(by_fqn[key.fqn].state, key.state, from_value(value)) for key, value in values.items()
              if key.fqn in by_fqn and key.state != GROUP]
    chosen: dict[int, tuple[str, Any]] = {}
    groups: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for one in wanted.optimized:
        group = values.get(TensorKey(one.parameter.fqn, GROUP))
        if group is None:
            continue
        fqn, known = chosen.setdefault(id(one.group), (one.parameter.fqn, group))
        if known != group:
            raise groups_differ(fqn, one.parameter.fqn, known, group)
        if known is group:
            groups.append((one.group, {name: from_value(value) for name, value in group.items()}))
    first: dict[int, tuple[TensorKey, torch.Tensor, torch.Tensor]] = {}
    for state, key, received in wanted.shared:
        if key in skipped:
            continue
        other, _, value = first.setdefault(id(state), (key, state, received))
        if not torch.equal(value, received):
            raise LayoutMismatch(f"{key.fqn} and {other.fqn} are in one flat parameter, but their sources differ in {key.state}: "
                                 f"{received.item()} and {value.item()}")
    return _Values(states, groups, [(state, received) for _, state, received in first.values()],
                   received_extra(values))


@torch.no_grad()
def restore_into(session: Session, model: nn.Module, optimizers: Optimizers = None, *, step: int | None = None,
                 name: str = "torch", deadline: Seconds = 60, verify: Verify = "none", absent: Mapping[str, Absent] | None = None,
                 progress: Callable[[Progress], object] | None = None, ranks: int | Sequence[int] | None = None,
                 replicas: Replicas = "first", staging_bytes: int = 256 << 20) -> RestoreResult:
    """Overwrites a model and its optimizers with the state that peers published, in place.

    Waits until all publishers are there. Creates optimizer states that this rank lacks, in the order of param_groups, and
    sets the options of parameter groups. `absent` maps globs of "name" or "name:state" to "skip" or "zero", for tensors that
    no peer has; scalars such as `step` are skipped by both. `replicas`: see Session.restore(); replicas of one tensor drift
    apart in training, so each tensor comes from one holder. `ranks`: as in publish(). After an error the optimizers lack the
    states that they lacked before. Raises LayoutMismatch, before a byte is written, if types, shapes or options differ or parts
    are missing; StepMismatch, TimedOut, PeerLost as Session.restore().
    """
    until = Deadline(deadline)
    numbers = ranks_of(session, ranks)
    reshard(model)
    inventory = final_inventory(session, name, step, until)
    published = Published(inventory)
    policy = _absences(absent or {}, published)
    asked = (name, tuple(published.values), tuple(published.tensors.items()), tuple(sorted((absent or {}).items())))

    def catalog() -> ModelCatalog:
        return model_catalog(model, optimizers, numbers, wanting=True, absent=policy, key=asked)

    with _missing_states(catalog().optimized, published):
        wanted = catalog()  # another one if states were missing
        if not wanted.requested:
            _require_alike(wanted, published)
            _request_values(wanted, published, policy)
            wanted.requested = True
        # Values first: a byte is written only after they have been found right.
        small = session.restore(wanted.small, name=name, step=inventory.step, deadline=until.left(), replicas=replicas,
                                discovery_grace=0)
        skipped = small.wait().skipped
        received = _checked(wanted, small.values(), skipped)
        restore = session.restore(wanted.catalog, name=name, step=inventory.step, deadline=until.left(), verify=verify,
                                  replicas=replicas, discovery_grace=0, staging_bytes=staging_bytes)
        report = restore.wait(progress)
        received.apply()
        for key in report.skipped:
            if key in wanted.zeroed_alone:
                wanted.zeroed_alone[key].zero_()
    return RestoreResult(inventory.step, received.extra, report)
