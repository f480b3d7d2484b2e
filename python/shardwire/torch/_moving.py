# SPDX-License-Identifier: Apache-2.0
"""The one way of restoring: models, state dicts and what adapters find become targets, which are made of entries."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch

from .. import Inventory, LayoutMismatch, Progress, Report, Restore, Session, TensorInfo, TensorKey
from .._types import Absent, Replicas, Seconds, Verify
from . import _shared as shared
from ._awaiting import Deadline, reading
from ._dtypes import name_of
from ._entries import PARAM, Entries
from ._extra import request_extra
from ._layouts import Local, Ranks
from ._model import text_of


@dataclasses.dataclass(frozen=True)
class RestoreResult:
    """What restores return."""

    step: int
    """The step of the publications."""
    extra: dict[str, Any]
    """The publishers' extra state by name; tensors are new ones of the host."""
    report: Report
    """Figures of the restore."""

    def as_dict(self) -> dict[str, Any]:
        """Step and figures as dicts and lists, for JSON."""
        return {"step": self.step, **self.report.as_dict()}


def absence_of(key: TensorKey, absent: Mapping[str, Absent] | None) -> Absent | None:
    """What the first glob that matches "name" or "name:state" chooses; None without one."""
    for pattern, chosen in (absent or {}).items():
        if fnmatch.fnmatchcase(key.fqn, pattern) or fnmatch.fnmatchcase(f"{key.fqn}:{key.state}", pattern):
            return chosen
    return None


class Published:
    """What an inventory lists, read once."""

    def __init__(self, inventory: Inventory) -> None:
        self.tensors = inventory.tensors
        self.values = inventory.values
        self.aliases = inventory.aliases
        self.ties = {TensorKey(*state): TensorKey(*other) for state, other in shared.ties_in(self.values, shared.STATES)}
        """States that are tensors of others, and these."""
        self.tied_values = shared.ties_in(self.values, shared.VALUES)
        """Tensors in values that are tensors of others, and these."""
        self.states: dict[str, dict[str, TensorInfo]] = {}
        """Tensors by the names of their parameter, then by state."""
        for (fqn, state), info in self.tensors.items():
            self.states.setdefault(fqn, {})[state] = info
        for alias, fqn in self.aliases.items():
            if fqn in self.states:
                self.states.setdefault(alias, self.states[fqn])
        self.stateful = {fqn for fqn, states in self.states.items() if PARAM in states and len(states) > 1}
        """Names of parameters of which optimizers keep tensors."""

    def optimized(self, fqn: str) -> dict[str, TensorInfo]:
        """The tensors that optimizers keep of a parameter."""
        states = self.states.get(fqn, {})
        return {state: info for state, info in states.items() if state != PARAM} if PARAM in states else {}

    def require_alike(self, declared: Iterable[tuple[TensorKey, Local]]) -> None:
        """The library checks this too, but knows fewer of the names."""
        wrong = []
        for key, local in declared:
            theirs, dtype = self.states.get(key.fqn, {}).get(key.state), name_of(local.tensor.dtype)
            if theirs is not None and (theirs.dtype, theirs.shape) != (dtype, local.shape):
                wrong.append(f"{key.fqn}:{key.state}: source has {theirs.dtype} {theirs.shape}, target wants {dtype} {local.shape}")
        if wrong:
            raise LayoutMismatch(f"types or shapes differ: {'; '.join(wrong[:10])}{' ..' if len(wrong) > 10 else ''}")


class Target:
    """What a restore overwrites: the tensors of entries. Its catalog asks for extra state, and for values that its maker adds."""

    def __init__(self, entries: Entries, ranks: Ranks, published: Published | None, absent: Mapping[TensorKey, Absent],
                 owner: list[Any] | None = None, event: int = 0) -> None:
        if published is not None:
            published.require_alike(entries.tensors.items())
        # The library refuses to zero one element, since it might be a step. It skips these, of which all but scalars become zero later.
        ones = {key: entries.tensors[key] for key, chosen in absent.items()
                if chosen == "zero" and math.prod(entries.tensors[key].shape) == 1}
        self._zeroed = {key: local.tensor for key, local in ones.items() if local.shape != ()}
        self.catalog = entries.catalog(ranks, absent={**absent, **dict.fromkeys(ones, "skip")}, owner=owner, event=event)
        request_extra(self.catalog, () if published is None else published.values)

    def zero(self, skipped: Iterable[TensorKey]) -> None:
        """After a restore that skipped these."""
        for key in skipped:
            if key in self._zeroed:
                self._zeroed[key].zero_()


Look = Callable[[Restore], "dict[str, Any] | None"]
"""Sees the values before a byte is written, and raises if they are wrong; gives the extra state if some is among them."""


def move(session: Session, target: Target, inventory: Inventory, until: Deadline, look: Look, *, name: str, verify: Verify,
         replicas: Replicas = "first", staging_bytes: int = 256 << 20, progress: Callable[[Progress], object] | None = None
         ) -> RestoreResult:
    """Fills the target with what the inventory lists."""
    with reading(session, name, inventory):
        moving = session.restore(target.catalog, name=name, step=inventory.step, timeout=until.left(), verify=verify,
                                 replicas=replicas, stop_at_values=True, discovery_grace=0, staging_bytes=staging_bytes)
        moving.wait_values()
    extra = look(moving)
    with reading(session, name, inventory):
        moving.proceed()
        report = moving.wait(progress)
    target.zero(report.skipped)
    return RestoreResult(inventory.step, extra or {}, report)


def restore(session: Session, target_of: Callable[[Inventory, Deadline], tuple[Target, Look]], *, name: str, step: int | None,
            timeout: Seconds, **options: Any) -> RestoreResult:
    """Waits until all publishers of the step are there, and fills the target that is made for them. `options`: of move()."""
    until = Deadline(timeout)
    inventory = session.await_step(name, step, until.left())
    target, look = target_of(inventory, until)
    return move(session, target, inventory, until, look, name=name, **options)


Tie = tuple[TensorKey, TensorKey, torch.Tensor, torch.Tensor]
"""Two of the sources' tensors that are one memory here, and what each of them gave. A further name's part arrives in a copy."""


def copies_of(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """New memory in one piece, which receives what belongs into these parts of a tensor. They keep their strides.
    Call synchronize() before it is written."""
    spans = [1 + sum((extent - 1) * stride for extent, stride in zip(part.shape, part.stride())) if part.numel() else 0 for part in parts]
    memory = torch.empty(sum(spans), dtype=parts[0].dtype, device=parts[0].device)
    return [place.as_strided(part.shape, part.stride()) for part, place in zip(parts, torch.split(memory, spans))]


def require_equal(ties: Iterable[Tie]) -> None:
    """Raises LayoutMismatch if two of the sources' tensors that are one memory here gave different bytes."""
    for first, second, one, other in ties:
        if not torch.equal(_bytes_of(one), _bytes_of(other)):
            raise LayoutMismatch(f"{text_of(first)} and {text_of(second)} are one tensor here, but two in the sources, which differ")


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    # A copy: one element may have a stride, with which view() makes no bytes of it.
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
