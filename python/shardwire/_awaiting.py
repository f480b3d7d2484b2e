# SPDX-License-Identifier: Apache-2.0
"""Operations in an event loop."""

from __future__ import annotations

from typing import Any, Generator


def until_done(operation: Any) -> Generator[Any, None, Any]:
    """Suspends the task until the operation has ended; gives what its wait() gives."""
    import asyncio

    if not operation.poll():
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def readable() -> None:
            if not done.done():
                done.set_result(None)

        descriptor = operation.fileno()
        loop.add_reader(descriptor, readable)
        try:
            yield from done
        finally:
            loop.remove_reader(descriptor)
    return operation.wait()

