# SPDX-License-Identifier: Apache-2.0
"""Figures of a restore or an exchange."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from ._types import Box, FallbackReason, Gap, TensorKey


class StageSeconds(NamedTuple):
    """Seconds of the stages, which follow one another and sum to `wall`."""

    wall: float
    join: float
    plan: float
    bind: float
    move: float
    verify: float
    commit: float


class MethodReport(NamedTuple):
    """Bytes and contiguous runs of one transfer method, with predicted and measured seconds."""

    bytes: int
    runs: int
    predicted_seconds: float
    measured_seconds: float


class PeerReport(NamedTuple):
    """Bytes that came from one source rank by one path.

    `fallback_reason`: why there was no better path, one that somebody can remove if there is any. `fallback_detail`: all reasons, for
    people. `measured_seconds`: from the first request for these bytes until the last of them was in place.
    """

    rank: int
    bytes: int
    path: str
    device: str
    fallback_reason: FallbackReason
    fallback_detail: str
    predicted_seconds: float
    measured_seconds: float


class LostSource(NamedTuple):
    """A source that a restore has given up, `after_seconds` after it began.

    `reason`: the code of the error, such as "peer_lost", or "withdrawn" if the source took its publication back.
    `resent_bytes`: bytes of the boxes planned anew that had arrived before.
    """

    rank: int
    reason: str
    why: str
    after_seconds: float
    boxes_replanned: int
    resent_bytes: int


class CorruptBox(NamedTuple):
    """A box that was not what source rank `source` had published; see Session.publish(digest=True)."""

    fqn: str
    state: str
    box: Box
    source: int


class IncompleteStep(NamedTuple):
    """A step that a restore with step_rule="newest_complete" has passed over, and the wanted boxes that no source held."""

    step: int
    gaps: list[Gap]


@dataclasses.dataclass(frozen=True)
class Report:
    """Figures of one restore. `moved_bytes + local_bytes == needed_bytes + overread_bytes + resent_bytes`."""

    needed_bytes: int
    moved_bytes: int
    local_bytes: int
    overread_bytes: int
    resent_bytes: int
    methods: dict[str, MethodReport]
    rounds: int
    rounds_bytes: int
    rounds_seconds: float
    seconds: StageSeconds
    staging_budget_bytes: int
    staging_peak_bytes: int
    registered_bytes: int
    registration_seconds: float
    digest_seconds: float
    transport: str
    peers: list[PeerReport]
    skipped: list[TensorKey]
    zeroed: list[TensorKey]
    lost: list[LostSource]
    corrupt: list[CorruptBox]
    step: int | None
    incomplete_steps: list[IncompleteStep]

    def as_dict(self) -> dict[str, Any]:
        """The same as dicts and lists, for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


class ExchangeResult(NamedTuple):
    """Result of an exchange, apart from the tensors."""

    report: Report
    values: dict[TensorKey, Any]
