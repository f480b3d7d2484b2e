#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the death of one of two holders costs a restore: undisturbed and disturbed runs of one case take turns.

usage: failover.py SHARDWIRE [--transport LIST] [--kinds kill,stop,cut] [--megabytes N] [--rounds N]

256 MB go to each of two target ranks, from four source ranks of which each row has two holders; a source rank that is no
target is struck when 10 to 90 % of the bytes have arrived. One JSON row per kind of fault goes to standard output:
`ratio` is the worst (disturbed wall time - notice) / (median undisturbed wall time), of which at most 1.3 is wanted, and
`again_over_needed` the most bytes that moved a second time.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile


def case_of(megabytes: int) -> str:
    # Each target rank wants half of the columns: 4 bytes x rows x 8192 / 2.
    rows = megabytes * 1000 * 1000 * 2 // (4 * 8192) // 4 * 4
    return json.dumps({
        "states": ["m"], "tensors": [{"fqn": "w", "shape": [rows, 8192]}],
        "source": {"ranks": 4, "rules": {"*": {"mesh": [2, 2], "placements": ["R", "S(0)"]}}},
        "target": {"ranks": 2, "rules": {"*": {"mesh": [2], "placements": ["S(1)"]}}}})


def run(options: argparse.Namespace, case: str, fault: str | None) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        words = [options.shardwire, "run", "-", "--disjoint", "--transport", options.transport, "--notice", str(options.notice),
                 "--timeout", "60", "--report", report]
        if fault:
            words += ["--fault", fault]
        done = subprocess.run(words, input=case, text=True, capture_output=True, env={**os.environ, "SHARDWIRE_LOG": "error"})
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
        with open(report) as file:
            return json.load(file)


def processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shardwire")
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--kinds", default="kill,stop,cut")
    parser.add_argument("--megabytes", type=int, default=256, help="to each target rank")
    parser.add_argument("--rounds", type=int, default=3, help="of faults at 10, 30, 50, 70 and 90 %%")
    parser.add_argument("--notice", type=float, default=0.5)
    options = parser.parse_args()
    case = case_of(options.megabytes)
    for kind in options.kinds.split(","):
        undisturbed, disturbed = [], []
        for _ in range(options.rounds):
            for percent in (10, 30, 50, 70, 90):
                undisturbed.append(run(options, case, None))
                disturbed.append(run(options, case, f"{kind}:2@{percent}"))
        walls = [one["seconds"]["wall"] for one in undisturbed]
        struck = [one for one in disturbed if one["faults"][0]["struck"]]
        late = [one["seconds"]["wall"] for one in struck]
        row = {
            "name": "perf/failover.py", "kind": kind, "transport": options.transport, "machine": processor(),
            "bytes_per_target": options.megabytes * 1000 * 1000, "notice_s": options.notice, "runs": len(struck),
            "undisturbed_s": statistics.median(walls), "undisturbed_max_s": max(walls), "disturbed_s": statistics.median(late),
            "disturbed_max_s": max(late), "ratio": (max(late) - options.notice) / statistics.median(walls),
            "median_ratio": (statistics.median(late) - options.notice) / statistics.median(walls),
            "again_over_needed": max(one["bytes"]["again"] / one["bytes"]["needed"] for one in struck),
            "verified": all(one["verified"] for one in undisturbed + disturbed),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
