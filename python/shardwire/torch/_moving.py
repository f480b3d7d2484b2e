# SPDX-License-Identifier: Apache-2.0
"""What every restore does once its catalog is made."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterable, Sequence

import torch

from .. import Catalog, Inventory, LayoutMismatch, Progress, Report, Restore, Session, TensorKey
from .._types import Replicas, Verify
from ._absent import OneElement
from ._awaiting import Deadline, reading
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


def move(session: Session, wanted: Catalog, inventory: Inventory, until: Deadline, check: Callable[[Restore], None], *, name: str,
         verify: Verify, replicas: Replicas, staging_bytes: int, one_element: OneElement,
         progress: Callable[[Progress], object] | None) -> Report:
    """Fills the memory of the catalog with what the inventory lists.

    `check` sees the values before a byte is written, and raises if they are wrong.
    """
    with reading(session, name, inventory):
        moving = session.restore(wanted, name=name, step=inventory.step, timeout=until.left(), verify=verify, replicas=replicas,
                                 stop_at_values=True, discovery_grace=0, staging_bytes=staging_bytes)
        moving.wait_values()
    check(moving)
    with reading(session, name, inventory):
        moving.proceed()
        report = moving.wait(progress)
    one_element.zero(report.skipped)
    return report


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
