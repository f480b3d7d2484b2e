# SPDX-License-Identifier: Apache-2.0
"""Exchange of sharded optimizer state between trainer ranks, directly.

A rank publishes the tensors that it holds; another restores what it wants from the memory of those that hold it. Times are
in seconds, sizes in bytes. Calls that wait release the interpreter's lock and run signal handlers, so Ctrl-C ends them.
"""

from __future__ import annotations

import atexit as _atexit
import sys as _sys

if "t" in _sys.abiflags:
    raise ImportError("shardwire relies on the interpreter's lock: use a build of Python that is not free-threaded")

from . import _core
from ._core import (Arena, Catalog, Exchange, Inventory, JobLayout, Layout, Publication, Registration, Restore, Retirement, Session,
                    View, plan, totals)
from ._errors import (Cancelled, Corrupt, Error, InternalError, InvalidArgument, LayoutMismatch, OutOfResources, PeerLost,
                      StepMismatch, TimedOut, TransportFailed, Unsupported, Withdrawn)
from ._report import CorruptBox, ExchangeResult, IncompleteStep, LostSource, MethodReport, PeerReport, Report, StageSeconds
from ._types import (Box, FlatMember, Flow, Gap, MemoryPaths, ParamGroup, PeerPath, PlacedBox, Plan, PlannedPiece, Progress,
                     Publisher, RejectedTransport, Replicate, SessionUsage, Shard, StridedShard, TargetTotals, TensorInfo, TensorKey,
                     TensorValue, Totals, TransportPath)

__version__: str = _core.version

__all__ = [
    "Arena", "Box", "Cancelled", "Catalog", "Corrupt", "CorruptBox", "Error", "Exchange", "ExchangeResult",
    "FlatMember", "Flow", "Gap", "IncompleteStep", "InternalError", "InvalidArgument", "Inventory", "JobLayout", "Layout",
    "LayoutMismatch", "LostSource", "MemoryPaths", "MethodReport", "OutOfResources", "ParamGroup", "PeerLost", "PeerPath",
    "PeerReport", "PlacedBox", "Plan", "PlannedPiece", "Progress", "Publication", "Publisher", "Registration",
    "RejectedTransport", "Replicate", "Report", "Restore", "Retirement", "Session", "SessionUsage", "Shard", "StageSeconds", "StepMismatch", "StridedShard", "TargetTotals", "TensorInfo",
    "TensorKey", "TensorValue", "TimedOut", "Totals", "TransportFailed", "TransportPath", "Unsupported", "View", "Withdrawn",
    "plan", "totals",
]

_atexit.register(_core.end)
