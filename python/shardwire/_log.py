# SPDX-License-Identifier: Apache-2.0
"""Messages and metrics of the library on their way to the program's functions, or to its logger."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def logger_of_program() -> tuple[Callable[[int, str], object], bool] | None:
    """`log` of the logger "shardwire" and whether it takes debug messages; None unless this logger or one above it has a handler.

    SHARDWIRE_LOG sets the level of the logger if the program has not. With a level that does not exist, None: the library refuses it.
    """
    if "logging" not in sys.modules:  # no logger has a handler then, and the import takes longer than that of this package
        return None
    import logging

    logger = logging.getLogger("shardwire")
    if not logger.hasHandlers():
        return None
    if asked := os.environ.get("SHARDWIRE_LOG"):
        if asked not in ("debug", "info", "warning", "error"):
            return None
        if logger.level == logging.NOTSET:
            logger.setLevel(asked.upper())
    return logger.log, logger.isEnabledFor(logging.DEBUG)


def deliver(next_message: Callable[[], tuple[object, ...] | None], target: Callable[..., object]) -> None:
    """Calls `target` with each message until there is none.

    In Python: where the interpreter ends a thread that runs `target`, there must be no frames of C++.
    """
    while (message := next_message()) is not None:
        try:
            target(*message)
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
