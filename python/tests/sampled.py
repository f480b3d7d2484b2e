# SPDX-License-Identifier: Apache-2.0
"""`--sample` runs every Nth case of a test that is marked `sampled(N)`, and none with 0."""

from __future__ import annotations

import collections

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="leave out most cases of tests that are marked sampled")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sampled(every): with --sample, only each `every`th of its cases runs, and none with 0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("sample"):
        return
    seen: collections.Counter[str] = collections.Counter()
    kept, left = [], []
    for item in items:
        mark = item.get_closest_marker("sampled")
        test = item.nodeid.partition("[")[0]
        runs = mark is None or (mark.args[0] > 0 and seen[test] % mark.args[0] == 0)
        seen[test] += 1
        (kept if runs else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
