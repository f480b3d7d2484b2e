# SPDX-License-Identifier: Apache-2.0
"""What every restore does once its catalog is made."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

from .. import Catalog, Inventory, Progress, Report, Restore, Session
from .._types import Replicas, Verify
from ._absent import OneElement
from ._awaiting import Deadline, reading


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
