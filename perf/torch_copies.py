#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strided copies as torch makes them, into a staging tensor and back: what users would take beside perf_device_copy.

The same runs and gaps, beside torch's copies of as many bytes that are contiguous; one JSON row for each method and length of runs.
Exits 77 where there is no torch with the device that is asked for, with the reason on standard error.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

SKIPPED = 77


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="of torch; cpu tries the program itself")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of a copy on the device")
    parser.add_argument("--host-bytes", type=int, default=256 << 20, help="of a copy from or to pinned memory of the host")
    parser.add_argument("--runs", default="512,4096,65536,1048576", help="bytes of a run")
    parser.add_argument("--repeats", type=int, default=20, help="timed repeats; one more warms up")
    parser.add_argument("--commit", default="unknown", help="of the rows")
    parser.add_argument("--in-a-row", type=int, default=4, help="copies that are timed together")
    return parser.parse_args()


def versions(torch):
    driver = pathlib.Path("/sys/module/nvidia/version")
    out = {"torch": torch.__version__, "cuda": torch.version.cuda}
    return out | ({"driver": driver.read_text(encoding="utf-8").strip()} if driver.exists() else {})


class Bench:
    def __init__(self, torch, options):
        self.torch = torch
        self.options = options
        self.device = torch.device(options.device)
        self.on_gpu = self.device.type == "cuda"

    def finish(self):
        if self.on_gpu:
            self.torch.cuda.synchronize(self.device)

    def seconds(self, copies):
        """Of each copy, by turn, after one that warms up."""
        taken = [[] for _ in copies]
        for repeat in range(self.options.repeats + 1):
            for number, (target, source) in enumerate(copies):
                self.finish()
                began = time.perf_counter()
                for _ in range(self.options.in_a_row):
                    target.copy_(source, non_blocking=True)
                self.finish()
                if repeat > 0:
                    taken[number].append((time.perf_counter() - began) / self.options.in_a_row)
        return taken

    def row(self, name, run, size, taken, plain):
        seconds, bound = statistics.median(taken), statistics.median(plain)
        properties = self.torch.cuda.get_device_properties(self.device) if self.on_gpu else None
        return {
            "name": f"torch {name}",
            "target": "gpu",
            "commit": self.options.commit,
            "versions": versions(self.torch),
            "repeats": self.options.repeats,
            "in_a_row": self.options.in_a_row,
            "run_bytes": run,
            "bytes": size,
            "seconds": seconds,
            "seconds_min": min(taken),
            "seconds_max": max(taken),
            "bytes_per_second": size / seconds,
            "bound": "torch, contiguous",
            "bound_seconds": bound,
            "bound_seconds_min": min(plain),
            "bound_seconds_max": max(plain),
            "ratio": bound / seconds,
            "device": {"name": properties.name if properties else "cpu"},
        }

    def rows(self):
        options, torch = self.options, self.torch
        for run in (int(word) for word in options.runs.split(",")):
            for names, most in ((("pack", "unpack"), options.bytes), (("to host", "from host"), options.host_bytes)):
                count = most // run
                wide = torch.randint(0, 256, (count, 2 * run), dtype=torch.uint8, device=self.device)
                gaps = wide[:, :run]
                other = torch.zeros((count, run), dtype=torch.uint8, device=self.device)
                if names[0] == "pack":
                    staging = torch.zeros_like(other)
                else:
                    staging = torch.zeros((count, run), dtype=torch.uint8, pin_memory=self.on_gpu)
                for name in names:
                    into = name in ("pack", "to host")
                    strided = (staging, gaps) if into else (gaps, staging)
                    plain = (staging, other) if into else (other, staging)
                    bound, taken = self.seconds([plain, strided])  # the strided one is the last
                    if not torch.equal(gaps.cpu(), staging.cpu()):
                        raise RuntimeError(f"wrong bytes after {name} of runs of {run} bytes")
                    yield self.row(name, run, count * run, taken, bound)
                    staging.random_(0, 256)  # other bytes go back


def main():
    options = parse()
    try:
        import torch
    except ImportError as error:
        print(f"there is no torch: {error}", file=sys.stderr)
        return SKIPPED
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(f"torch {torch.__version__} has no CUDA here", file=sys.stderr)
        return SKIPPED
    for row in Bench(torch, options).rows():
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
