# SPDX-License-Identifier: Apache-2.0
"""What every restore does once its catalog is made."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Sequence

import torch

from .. import Catalog, Inventory, LayoutMismatch, Progress, Report, Restore, Session, TensorKey
from .._types import Replicas, Verify
from ._absent import OneElement
from ._awaiting import Deadline, reading
from ._layouts import Local
from ._model import add_tensor, synchronize, text_of


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


Ties = Sequence[tuple[TensorKey, TensorKey, Local]]
"""Two of the sources' tensors that are one here, and the second one's part here."""


def add_copies(wanted: Catalog, parts: Mapping[TensorKey, Local]) -> dict[TensorKey, torch.Tensor]:
    """New tensors, added to the catalog, that receive what belongs into these parts."""
    copies: dict[TensorKey, torch.Tensor] = {}
    for key, local in parts.items():
        here = local.tensor
        copies[key] = torch.empty_strided(here.shape, here.stride(), dtype=here.dtype, device=here.device)
        add_tensor(wanted, key, dataclasses.replace(local, tensor=copies[key]), copies[key])
    synchronize(copies.values())
    return copies


def require_equal(tied: Ties, received: Mapping[TensorKey, torch.Tensor]) -> None:
    """Raises LayoutMismatch if two of the sources' tensors that are one here differ. `received`: both tensors of each tie."""
    for first, second, _ in tied:
        if not torch.equal(_bytes_of(received[first]), _bytes_of(received[second])):
            raise LayoutMismatch(f"{text_of(first)} and {text_of(second)} are one tensor here, but two in the sources, which differ")


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    # A copy: one element may have a stride, with which view() makes no bytes of it.
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
