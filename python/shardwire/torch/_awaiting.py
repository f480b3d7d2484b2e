# SPDX-License-Identifier: Apache-2.0
"""Waiting for publications."""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import Iterator

from .. import Error, Inventory, LayoutMismatch, Session, StepMismatch, TimedOut, Withdrawn
from .._types import Seconds

_LOOK_AFTER_AN_ERROR = 1.0


class Deadline:
    """Seconds that are left of an operation of several calls."""

    def __init__(self, seconds: Seconds) -> None:
        if isinstance(seconds, datetime.timedelta):
            seconds = seconds.total_seconds()
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


@contextlib.contextmanager
def reading(session: Session, name: str, inventory: Inventory) -> Iterator[None]:
    """For restores of what `inventory` lists. Raises Withdrawn if a publication that they lack has ended meanwhile."""
    try:
        yield
    except (LayoutMismatch, StepMismatch, TimedOut, Withdrawn) as error:
        try:
            now = session.inventory(name, inventory.step, _LOOK_AFTER_AN_ERROR).publishers
        except Error:
            raise error from None
        gone = [publisher.rank for publisher in inventory.publishers if publisher not in now]
        if not gone:
            raise
        raise Withdrawn(f"ranks {gone} published step {inventory.step} of '{name}' when this restore began, and no longer do",
                        error.gaps, gone, error.report) from error
