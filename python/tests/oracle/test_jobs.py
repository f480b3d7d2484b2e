# SPDX-License-Identifier: Apache-2.0
"""A restore between ranks under any wrappers leaves what torch's own gather, save and load leave, or it is refused by name.

ORACLE_EXAMPLES=2000 draws that many jobs, other ones each time. ORACLE_SEED=3 says which.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from typing import Any

import hypothesis
import pytest
import torch

import jobs
from jobs import Job
from pool import Pool
from trainers import Spec

EXAMPLES, SEED = os.environ.get("ORACLE_EXAMPLES"), os.environ.get("ORACLE_SEED")


def _spec(wrapper: str, *mesh: int, **options: Any) -> Spec:
    return Spec(wrapper, mesh, options.pop("optimizer", "one_group"), **options)


_FROZEN: dict[str, Any] = {"net": (("frozen", True),), "dtype": torch.bfloat16}
_ROTATED = _spec("fsdp2", 4, ranks=(1, 2, 3, 0))
_UNEVEN: dict[str, Any] = {"net": (("rows", 7), ("width", 10))}

KEPT: dict[str, tuple[str, Job]] = {
    "a mesh of ranks that do not ascend, in a session in another order": (
        "equal", Job(_ROTATED, _ROTATED, (0, 2, 3, 1), warm=True, entries=("scalar", "wide"))),
    "uneven rows, and members named": ("equal", Job(
        dataclasses.replace(_ROTATED, **_UNEVEN), _spec("fsdp1", 3, orig=False, ranks=(0, 2, 3), **_UNEVEN), (3, 1, 0, 2), True)),
    "members named in the order of a part of the mesh": (
        "equal", Job(_spec("fsdp2", 3, ranks=(3, 0, 1)), _spec("zero", 2, ranks=(1, 2)), named=True)),
    "states that are DTensors without dims, and lists of DTensors": (
        "equal", Job(_spec("fsdp2", 2), _spec("plain", 1), (1, 0, 2, 3), entries=("whole", "list"))),
    "whole parameters of FSDP1, some of them frozen, into two dims": (
        "equal", Job(_spec("fsdp1", 4, strategy="NO_SHARD", **_FROZEN), _spec("fsdp2", 2, 2, **_FROZEN))),
    "after a forward without gradients": ("equal", Job(
        _spec("fsdp1", 2, orig=False, strategy="SHARD_GRAD_OP"), _spec("fsdp2", 3), warm=True, evaluated=True)),
    "after a forward without gradients, the other way": ("equal", Job(
        _spec("fsdp2", 3), _spec("fsdp1", 2, strategy="SHARD_GRAD_OP"), warm=True, evaluated=True)),
    "a mesh of ranks whose numbers nothing tells": (
        "refused: InvalidArgument", Job(_spec("plain", 1), _spec("fsdp2", 2, ranks=(2, 3)), (1, None, 0, 2), warm=True)),
    "gradients of replicas that were put in other buckets": ("equal to both", Job(
        _spec("ddp", 3, optimizer="wide"), _spec("ddp", 3, optimizer="wide"), warm=True)),
    "norms with hooks that exchange weight and bias": ("equal to both", Job(_spec("fsdp2", 4), _spec("fsdp2", 2), hooks="exchange")),
    "sharded norms whose values a hook changes": ("refused: Unsupported", Job(
        _spec("fsdp2", 2), _spec("fsdp2", 2), hooks="double and halve")),
    "norms in flat parameters that have hooks": ("refused: Unsupported", Job(
        _spec("fsdp1", 2, orig=False), _spec("fsdp2", 2), hooks="double and halve")),
    "another width, in flat parameters without state": (
        "refused: LayoutMismatch: types or shapes differ", Job(_spec("hsdp", 2, 2), _spec("fsdp1", 4, net=(("width", 12),)))),
}


def _outcome(pool: Pool, job: Job, name: str) -> str:
    results = pool(jobs.WORLD, jobs.run, job, name, seconds=300)
    wrong = [f"rank {rank}: {line}" for rank, (_, lines) in enumerate(results) for line in lines]
    assert not wrong, "\n".join([repr(job), results[0][0], *wrong[:40]])
    return results[0][0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KEPT)
def test_kept_jobs(pool: Pool, name: str) -> None:
    """Jobs that found a fault once, and one of each kind of refusal."""
    expected, job = KEPT[name]
    assert _outcome(pool, job, name).startswith(expected)


def test_drawn_jobs(pool: Pool) -> None:
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []

    # Without looking for a smaller job: that is hardly simpler, and takes as long.
    @hypothesis.settings(max_examples=int(EXAMPLES or 8), derandomize=EXAMPLES is None, deadline=None, database=None, print_blob=False,
                         phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(jobs.jobs())
    def check(job: Job) -> None:
        try:
            found = _outcome(pool, job, f"job {counts.total()}")
        except AssertionError as error:
            found = "wrong"
            wrong.append(f"{job!r}\n{error}")
            print(wrong[-1], flush=True)
        counts[re.sub(r"\d+", "#", found)[:100]] += 1

    (hypothesis.seed(int(SEED))(check) if SEED else check)()
    print(*counts.most_common(), sep="\n")
    assert not wrong, "\n".join(wrong)
    assert counts["equal"] + counts["equal to both"] > counts.total() * 0.6  # else it shows little
