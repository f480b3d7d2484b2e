# SPDX-License-Identifier: Apache-2.0
"""Waiting for publications."""

from __future__ import annotations

import datetime
import time

from .. import Inventory, Session, TimedOut
from .._types import Seconds

_LOOK_AGAIN = 0.05


class Deadline:
    """Seconds that are left of an operation of several calls."""

    def __init__(self, seconds: Seconds) -> None:
        if isinstance(seconds, datetime.timedelta):
            seconds = seconds.total_seconds()
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


def final_inventory(session: Session, name: str, step: int | None, deadline: Deadline) -> Inventory:
    """The publications once all ranks have published, or those that are absent can no more."""
    if step is not None:
        return session.await_step(name, step, deadline.left())
    while True:
        inventory = session.inventory(name, None, deadline.left())
        if inventory.publishers and (not inventory.absent or not inventory.awaited):
            return inventory
        if deadline.left() == 0:
            absent = f"ranks {inventory.absent} have not published '{name}'" if inventory.publishers else f"nobody publishes '{name}'"
            raise TimedOut(f"{absent} in time", ranks=inventory.absent)
        time.sleep(min(_LOOK_AGAIN, deadline.left()))
