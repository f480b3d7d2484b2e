# SPDX-License-Identifier: Apache-2.0
"""Exceptions, one class for each code. Python's own class for the same situation is a base where there is one."""

from __future__ import annotations

from typing import Any, Sequence

from ._report import Report
from ._types import Gap

__all__ = [
    "Cancelled", "Error", "InternalError", "InvalidArgument", "LayoutMismatch", "OutOfResources", "PeerLost", "StepMismatch",
    "TimedOut", "TransportFailed", "Unsupported", "Withdrawn",
]


class Error(RuntimeError):
    """Base of all errors of the library. The text is a full sentence that names the cause."""

    code = "internal"
    """Stable name, such as "peer_lost"."""
    retryable = False
    """Whether, judged by the code, the same call can succeed later without a change by the caller. After the loss of member 0
    only restores that have their plan succeed: end the session, and join again."""

    def __init__(self, message: str, gaps: Sequence[Gap] = (), ranks: Sequence[int] = (), report: Report | None = None) -> None:
        super().__init__(message)
        self.gaps: list[Gap] = list(gaps)
        """Boxes without a holder, or not yet complete."""
        self.ranks: list[int] = list(ranks)
        """Members, or ranks of a layout, that the error concerns."""
        self.report = report
        """Figures of the restore that failed, up to its end; in an exchange, of the step that failed here. Else None."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.gaps, self.ranks, self.report)


class InvalidArgument(Error, ValueError):
    """The call is wrong."""

    code = "invalid_argument"


class LayoutMismatch(Error, ValueError):
    """The two sides, or a layout and a shape, do not fit together."""

    code = "layout_mismatch"


class Unsupported(Error, NotImplementedError):
    """Legal, but not available in this build or not implemented."""

    code = "unsupported"


class OutOfResources(Error, MemoryError):
    """Memory, descriptors or shared memory are exhausted."""

    code = "out_of_resources"


class PeerLost(Error, ConnectionError):
    """A member died or closed its connection."""

    code = "peer_lost"
    retryable = True


class TimedOut(Error, TimeoutError):
    """The deadline of the operation passed."""

    code = "timed_out"
    retryable = True


class Cancelled(Error):
    """The caller cancelled the operation, or the session ended."""

    code = "cancelled"


class TransportFailed(Error, ConnectionError):
    """A transport or a connection reported a fault, or a peer broke the protocol."""

    code = "transport_failed"


class InternalError(Error):
    """A bug in the library."""

    code = "internal"


class Withdrawn(Error):
    """A source retired memory while it was being read, and there is no replacement."""

    code = "withdrawn"
    retryable = True


class StepMismatch(Error, ValueError):
    """The publications are not at the requested step, or not all at one step."""

    code = "step_mismatch"
    retryable = True


class Corrupt(Error):
    """Bytes are not those that were published, and no other rank has them."""

    code = "corrupt"


by_code: dict[str, type[Error]] = {
    one.code: one
    for one in (InvalidArgument, LayoutMismatch, Unsupported, OutOfResources, PeerLost, TimedOut, Cancelled, TransportFailed,
                InternalError, Withdrawn, StepMismatch, Corrupt)
}
