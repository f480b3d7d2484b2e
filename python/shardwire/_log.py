# SPDX-License-Identifier: Apache-2.0
"""Messages of the library on their way to the program's function."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def deliver(next_message: Callable[[], tuple[int, str] | None], log: Callable[[int, str], object]) -> None:
    """Calls `log` with each message until there is none.

    In Python: where the interpreter ends a thread that runs `log`, there must be no frames of C++.
    """
    while (message := next_message()) is not None:
        try:
            log(*message)
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
