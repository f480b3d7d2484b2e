#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What metrics and traces cost a restore of small tensors: runs of `shardwire perf` without and with them take turns.

usage: telemetry.py SHARDWIRE [--case FILE] [--rounds N] [--repeats N]

One JSON row goes to standard output. `seconds` has the median of each kind of run, and `over_off` the median over the rounds of
its time over that without either, of which at most 1.01 is wanted. `cpu_over_off`: the same of processor time. On a machine with fewer
processors than processes one round differs from the next by a fifth, so take hundreds of them.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
from typing import Callable

VARIABLES = {"SHARDWIRE_METRICS_FOLDER": ".prom", "SHARDWIRE_TRACE": ".json"}  # and the endings of their files
KINDS = {"off": [], "metrics": ["SHARDWIRE_METRICS_FOLDER"], "trace": ["SHARDWIRE_TRACE"],
         "both": ["SHARDWIRE_METRICS_FOLDER", "SHARDWIRE_TRACE"]}


def run(options: argparse.Namespace, kind: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        values = {"SHARDWIRE_METRICS_FOLDER": folder, "SHARDWIRE_TRACE": f"{folder}/trace.json"}
        environment = {name: value for name, value in os.environ.items() if name not in values}
        environment |= {name: values[name] for name in KINDS[kind]} | {"SHARDWIRE_LOG": "error"}
        words = [options.shardwire, "perf", options.case, "--json", "--against", "none", "--repeats", str(options.repeats)]
        done = subprocess.run(words, text=True, capture_output=True, env=environment)
        wrote = {pathlib.Path(name).suffix for name in os.listdir(folder)}
    if done.returncode != 0 or wrote != {VARIABLES[name] for name in KINDS[kind]}:
        raise SystemExit(f"{kind}: {' '.join(words)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shardwire")
    parser.add_argument("--case", default=str(pathlib.Path(__file__).parent / "cases/small-tensors.json"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=200, help="restores of a run")
    options = parser.parse_args()
    kinds = list(KINDS)
    orders = [kinds[first:] + kinds[:first] for first in range(len(kinds))]
    rounds = [{kind: run(options, kind) for kind in orders[number % len(orders)]} for number in range(options.rounds)]

    def over_off(of: Callable[[dict], float]) -> dict[str, float]:
        return {kind: statistics.median(of(one[kind]) / of(one["off"]) for one in rounds) for kind in kinds if kind != "off"}

    first = rounds[0]["off"]
    row = {"name": "perf/telemetry.py", "case": first["name"],
           **{key: first[key] for key in ("commit", "machine", "processes", "repeats")}, "rounds": options.rounds,
           "seconds": {kind: statistics.median(one[kind]["seconds"] for one in rounds) for kind in KINDS},
           "over_off": over_off(lambda row: row["seconds"]), "cpu_over_off": over_off(lambda row: row["cpu_seconds"]["restore"])}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
