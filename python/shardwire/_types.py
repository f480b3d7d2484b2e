# SPDX-License-Identifier: Apache-2.0
"""Plain values of the API. They compare, print and pickle as tuples do; the core makes and reads them by name."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Sequence, Union

if TYPE_CHECKING:
    from ._core import Layout

Seconds = Union[float, datetime.timedelta]
"""A duration. At least 0; `math.inf` for no limit."""
DTypeLike = Any
"""A name such as "f32", "bf16", "opaque16" or "float32", or the dtype of another package, such as `torch.float32`."""
Shape = Sequence[int]
Value = Any
"""None, bool, int (64 bits), float, str, bytes, TensorValue, or a list, a tuple or a dict with text keys of these."""

Absent = Literal["error", "skip", "zero"]
Agree = Literal["authoritative", "any", "per_rank"]
FallbackReason = Literal["none", "by_design", "other_host", "not_in_arena", "not_connected", "left_out", "not_built",
                         "library_missing", "library_unfit", "no_device", "memlock", "peer_without", "other_domain",
                         "other_namespace", "other_user", "undumpable", "ptrace_scope", "seccomp", "not_permitted",
                         "no_gpu_direct", "no_peer_access", "failed"]
MeshOrder = Literal["mesh", "tp_first"]
RestoreMethod = Literal["mapped", "read", "sieved_read", "zcopy", "packed"]
ExchangeMethod = Literal["mapped", "read", "sieved_read", "zcopy", "packed", "collective"]
Replicas = Literal["spread", "first", "compare"]
Snapshot = Literal["none", "copy"]
StepRule = Literal["agreed", "newest_complete"]
Verify = Literal["generation", "digest"]


class Box(NamedTuple):
    """Half-open region of a tensor, in global element coordinates."""

    offset: tuple[int, ...]
    size: tuple[int, ...]


class PlacedBox(NamedTuple):
    """A box and the local element at which it begins, with a stride in elements for each dim."""

    box: Box
    local_offset: int
    local_strides: tuple[int, ...]


class Replicate(NamedTuple):
    """Placement of a mesh dimension: each of its ranks holds the whole."""


class Shard(NamedTuple):
    """Placement of a mesh dimension: its ranks split `dim`."""

    dim: int = 0


class StridedShard(NamedTuple):
    """Placement of a mesh dimension: its ranks split `dim`, which a later mesh dimension has split before."""

    dim: int = 0
    split_factor: int = 1


Placement = Union[Replicate, Shard, StridedShard]


class FlatMember(NamedTuple):
    """One parameter of a flat parameter: its global shape, how outer ranks slice it, and its order of dims in memory."""

    shape: Sequence[int]
    outer: Layout | None = None
    order: Sequence[int] = ()


class TensorKey(NamedTuple):
    """Name of one piece of state, such as ("layers.3.mlp.down_proj.weight", "exp_avg")."""

    fqn: str
    state: str


class TensorInfo(NamedTuple):
    """What all ranks agree on of a tensor; the shape is the global one."""

    dtype: str
    shape: tuple[int, ...]


class TensorValue(NamedTuple):
    """A tensor that travels by value; `data` is little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Gap(NamedTuple):
    """A wanted region that no rank holds, or that did not arrive."""

    fqn: str
    state: str
    box: Box
    target: int


class ParamGroup(NamedTuple):
    """Parameters that an optimizer treats alike, and their options."""

    fqns: Sequence[str]
    options: dict[str, Value]


class Publisher(NamedTuple):
    """A member of the session and its rank in the layouts of its publication."""

    rank: int
    member: int


class Progress(NamedTuple):
    """State of a running restore. Stages: plan, bind, move, verify, commit, then done.

    "stopping" while bytes under way end, before another plan or the end. "failed" at the end of a restore that has failed, or was
    cancelled.
    """

    stage: str
    done_bytes: int
    total_bytes: int


class PlannedPiece(NamedTuple):
    """A region that one rank needs, with the ranks that hold it."""

    key: TensorKey
    box: Box
    holders: tuple[int, ...]


class Plan(NamedTuple):
    """What one rank needs; `gaps` are the regions without a holder."""

    pieces: list[PlannedPiece]
    gaps: list[Gap]


class Flow(NamedTuple):
    """Bytes from one rank of the source layout to one of the target layout."""

    source: int
    target: int
    bytes: int


class TargetTotals(NamedTuple):
    """Sums of the plan of one target rank."""

    needed: int
    local: int
    pieces: int
    runs: int


class Totals(NamedTuple):
    """Sums of the plans of all target ranks. Bytes, but for counts of pieces, runs and gaps."""

    needed: int
    local: int
    remote: int
    max_egress: int
    max_ingress: int
    pieces: int
    runs: int
    gaps: int
    targets: list[TargetTotals]
    flows: list[Flow]


class TransportPath(NamedTuple):
    """One open transport between this process and a peer, for memory of one kind.

    `fallback_reason`: why memory is not mapped, not read, or staged through host memory; `fallback_detail`: the same for people.
    """

    transport: str
    device: str
    reach: str
    map: bool
    read: bool
    message: bool
    gpu_direct: bool
    fallback_reason: FallbackReason
    fallback_detail: str


class RejectedTransport(NamedTuple):
    """A transport that is not used, although it would come before the first one that is."""

    transport: str
    reason: FallbackReason
    detail: str


class MemoryPaths(NamedTuple):
    """Transports for memory of one kind, best first, and those that are not used although they would come before."""

    memory: str
    transports: list[TransportPath]
    rejected: list[RejectedTransport]


class PeerPath(NamedTuple):
    """Paths between this process and one publisher; `failure`: why they, or some of them, could not be determined."""

    member: int
    rank: int
    address: str
    memory: list[MemoryPaths]
    failure: str


class SessionUsage(NamedTuple):
    """Totals of a session so far, as a source and as a target."""

    serving_budget_bytes: int
    serving_peak_bytes: int
    registered_bytes: int
    registration_seconds: float
    pinned_bytes: int
