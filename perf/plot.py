#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws speed over run length from the rows of a sweep.

usage: shardwire perf --json | plot.py FILE
       plot.py FILE ROWS

The ending of FILE says what it becomes: speed.svg, speed.png. One line for each method or pair; references and the line rate
are dashed. Needs matplotlib.
"""
import json
import sys
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
Lines = dict[str, dict[int, float]]  # by name: bytes per second by bytes of a run


def name_of(row: Row) -> str:
    """The method, or the pair of reader and source."""
    pairs = row.get("pairs")
    if not pairs:
        return row["method"]
    if len(pairs) > 1:
        return f"{len(pairs)} pairs, {pairs[0]['source']} on"
    return f"{pairs[0]['target']} <- {pairs[0]['source']}"


def lines_of(rows: Iterable[Row]) -> tuple[Lines, Lines]:
    """The measured lines, and those that they are held against."""
    measured: Lines = {}
    references: Lines = {}
    for row in rows:
        run = row["run_bytes"]
        measured.setdefault(name_of(row), {})[run] = row["bytes_per_second"]
        if row["method"] != "local":
            for kind, one in row.get("against", {}).items():
                references.setdefault(kind, {})[run] = row["bytes"]["needed"] / one["seconds"]
        nics = row.get("nics", {})
        if "line_bytes_per_second" in nics:
            ports = 1 if "pairs" in row else nics["count"]
            references.setdefault("line rate", {})[run] = nics["line_bytes_per_second"] * ports
    return measured, references


def draw(rows: list[Row], path: str) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for lines, style in zip(lines_of(rows), ("o-", "--")):
        for name, line in lines.items():
            axes.plot(sorted(line), [line[run] * 1e-9 for run in sorted(line)], style, label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes of a run")
    axes.set_ylabel("GB/s")
    first = rows[0]
    axes.set_title(f"{first['versions']['fabric']} between {first['processes']} processes; {first['machine']}")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    with open(sys.argv[2]) if len(sys.argv) == 3 else sys.stdin as file:
        rows = [json.loads(line) for line in file]
    if not rows or any("run_bytes" not in row for row in rows):
        raise SystemExit("plot.py: rows of a sweep are needed, which `shardwire perf --json` prints without a CASE")
    draw(rows, sys.argv[1])


if __name__ == "__main__":
    main()
