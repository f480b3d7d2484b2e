#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which of the wanted ratios rows of `perf/gpu` reach: gpu_targets.py ROWS

Prints a line for each measurement of one, of several the last, and for each part that has none: its ratio to the plain copy, the
least ratio that is wanted, and both speeds. Exits 1 for what is no row, except in the last line: a run may have been cut off there.
"""
import json
import sys


R1 = "8b-fsdp8-to-fsdp6-layer"  # names of perf/cases/r1-layer.json and r4-layer.json
R4 = "8b-fsdp8-to-tp8-layer"


def is_named(name):
    return lambda row: row["name"] == name


def is_copy(name):
    return is_named("perf_device_copy " + name)


def is_restore(method, shortest=0, longest=float("inf"), **options):
    def of(row):
        if row.get("method") != method or not shortest <= row.get("run_bytes", -1) <= longest:
            return False
        return all(row["options"].get(name, False) == value for name, value in options.items())

    return of


def is_case(name, verify):
    return lambda row: row["name"] == f"shardwire perf {name}" and row["options"].get("verify") == verify


def over_unverified(row):
    """Speed beside the same restore without digests."""
    return row["against"]["unverified"]["ratio"]


def ratio(row):
    return row["ratio"]


# What it is, which rows are of it, what counts, and what it has to reach; None: it is only reported.
PARTS = [
    ("within a process, runs of 4 KiB and more", is_restore("local", 4096), ratio, 0.95),
    ("within a process, runs of 512 B", is_restore("local", 512, 512), ratio, 0.85),
    ("R1 within a process", is_case(R1, None), ratio, 0.95),
    ("R4 within a process", is_case(R4, None), ratio, 0.95),
    ("pack", is_copy("pack"), ratio, 0.90),
    ("unpack", is_copy("unpack"), ratio, 0.90),
    ("CUDA IPC, source idle", is_restore("mapped", disjoint=True, transport="auto"), ratio, 0.95),
    ("CUDA IPC, both busy", is_restore("mapped", disjoint=False, transport="auto"), ratio, None),
    ("staged to pinned memory", is_copy("to host"), ratio, 0.90),
    ("staged from pinned memory", is_copy("from host"), ratio, 0.90),
    ("R1 with digests, over none", is_case(R1, "digest"), over_unverified, 1 / 1.15),
    ("R4 with digests, over none", is_case(R4, "digest"), over_unverified, 1 / 1.15),
    ("rounds of NCCL", is_restore("collective"), ratio, 0.80),
]
PARTS += [(f"by torch: {name}", is_named(f"torch {name}"), ratio, None) for name in ("pack", "unpack", "to host", "from host")]
PARTS += [(f"PyTorch{kind}: {name}", is_named(f"PyTorch{kind}: {name}"), ratio, None)
          for kind in ("", ", expandable segments") for name in ("restore, cold", "restore, warm")]


def line(title, row, value, target):
    verdict = "" if target is None else "reached" if value >= target else "MISSED"
    wanted = "" if target is None else f"{target:.2f}"
    length = str(row["run_bytes"]) if "run_bytes" in row else ""
    speed = row.get("bytes_per_second", 0) * 1e-9
    speeds = f"{speed:8.2f} {speed / row['ratio']:8.2f}" if speed and row["ratio"] else ""
    share = row.get("device", {}).get("share_of_peak")
    share = "" if share is None else f"{100 * share:.0f} % of peak"
    return f"{title:<42} {length:>8} {value:>6.2f} {wanted:>5}  {verdict:<8} {speeds:<17} {share}".rstrip()


def rows_of(lines):
    rows = []
    for number, text in enumerate(lines, 1):
        try:
            rows.append(json.loads(text))
        except ValueError:
            if number < len(lines):
                raise
    return rows


def main(path):
    with open(path, encoding="utf-8") as file:
        rows = rows_of([text for text in file if text.strip()])
    counts = {"reached": 0, "missed": 0, "not measured": 0}
    print(f"{'measured':<42} {'run':>8} {'ratio':>6} {'least':>5}  {'':<8} {'GB/s':>8} {'plain':>8}")
    for title, is_of, value_of, target in PARTS:
        found = {row.get("run_bytes"): row for row in rows if is_of(row)}
        for row in found.values():
            value = value_of(row)
            print(line(title, row, value, target))
            if target is not None:
                counts["reached" if value >= target else "missed"] += 1
        if not found:
            print(f"{title:<42} {'':>8} {'-':>6}        not measured")
            counts["not measured"] += 1
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"gpu_targets.py: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
