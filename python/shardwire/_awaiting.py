# SPDX-License-Identifier: Apache-2.0
"""Operations in an event loop."""

from __future__ import annotations

from typing import Any, Generator


def until_done(operation: Any) -> Generator[Any, None, None]:
    """Suspends the task until the operation has ended; raises its error."""
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


report_when_done = until_done
