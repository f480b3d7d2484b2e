# SPDX-License-Identifier: Apache-2.0
"""The oracle finds faults that are put into the package. Only with ORACLE_PLANTED=1: it looks at the oracle, not at the package."""

from __future__ import annotations

import os
from typing import Iterator

import hypothesis
import pytest
import torch.distributed as dist

import planted
import shardwire as sw
import shardwire.torch as swt
from generate import recipes
from kept import KEPT
from oracle import Wrong, outcome
from planted import FAULTS
from pool import Failed, Pool
from recipe import Recipe
from test_jobs import KEPT as KEPT_JOBS

pytestmark = pytest.mark.skipif(not os.environ.get("ORACLE_PLANTED"), reason="ORACLE_PLANTED is not set")

EXAMPLES = 400


@pytest.fixture(scope="module")
def session() -> Iterator[sw.Session]:
    with swt.join(dist.HashStore(), 0, 1) as joined:
        yield joined


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.recipe and not fault.job])
def test_drawn_recipes_find(session: sw.Session, name: str) -> None:
    drawn = 0

    @hypothesis.settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, print_blob=False,
                         phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(recipes())
    def check(recipe: Recipe) -> None:
        nonlocal drawn
        drawn += 1
        outcome(session, recipe)

    with FAULTS[name].plant(), pytest.raises((Wrong, hypothesis.errors.FlakyFailure)):
        check()
    print(f"{name}: found by recipe {drawn}")


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.recipe])
def test_kept_recipes_find(session: sw.Session, name: str) -> None:
    expected, recipe = KEPT[FAULTS[name].recipe]
    with FAULTS[name].plant():
        try:
            found = outcome(session, recipe)
        except Wrong as error:
            found = f"wrong: {error}"
    print(f"{name}: {found}")
    assert not found.startswith(expected)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.job])
def test_kept_jobs_find(pool: Pool, name: str) -> None:
    expected, job = KEPT_JOBS[FAULTS[name].job]
    try:
        results = pool(len(job.members), planted.run, job, name, name)
    except Failed as error:
        print(f"{name}: {error}")
        return
    print(f"{name}: {results[0]}")
    assert any(wrong for _, wrong in results) or not results[0][0].startswith(expected)
