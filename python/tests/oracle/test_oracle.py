# SPDX-License-Identifier: Apache-2.0
"""A restore leaves what torch's own save and load leave, or it refuses by name and changes nothing.

ORACLE_EXAMPLES=2000 draws that many recipes, other ones each time. ORACLE_SEED=3 says which.
"""

from __future__ import annotations

import collections
import os
import re
from typing import Iterator

import hypothesis
import pytest
import torch.distributed as dist

import shardwire as sw
import shardwire.torch as swt
from generate import recipes
from kept import KEPT
from oracle import outcome
from recipe import Recipe

EXAMPLES, SEED = os.environ.get("ORACLE_EXAMPLES"), os.environ.get("ORACLE_SEED")


@pytest.fixture(scope="module")
def session() -> Iterator[sw.Session]:
    with swt.join(dist.HashStore(), 0, 1) as joined:
        yield joined


@pytest.mark.parametrize("name", KEPT)
def test_kept_cases(session: sw.Session, name: str) -> None:
    """Recipes that found a fault once."""
    expected, recipe = KEPT[name]
    assert outcome(session, recipe).startswith(expected)


def test_drawn_cases(session: sw.Session) -> None:
    counts: collections.Counter[str] = collections.Counter()

    @hypothesis.settings(max_examples=int(EXAMPLES or 80), derandomize=EXAMPLES is None, deadline=None, database=None, print_blob=False,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(recipes())
    def check(recipe: Recipe) -> None:
        found = outcome(session, recipe)
        hypothesis.event(re.sub(r"\d+", "#", found)[:100])
        counts[found.partition(":")[0]] += 1

    (hypothesis.seed(int(SEED))(check) if SEED else check)()
    print(*counts.most_common(), sep="\n")
    whole = sum(counts.values())
    assert counts["equal"] + counts["equal to both"] > whole * 0.6  # else it shows little
    assert counts["refused"] < whole * 0.2
