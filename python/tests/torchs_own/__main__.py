# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own tests of distributed checkpoints twice: with files, and with peers in the place of files.

usage: python3 python/tests/torchs_own [CHECKOUT] [--python PYTHON] [--only NAME] [--seconds N]

CHECKOUT is a checkout of github.com/pytorch/pytorch, at the version of the torch that PYTHON has; or TORCH_CHECKOUT. Wheels have
no tests, and none are copied into this project: without a checkout everything is skipped. PYTHON needs torch, pytest,
expecttest and shardwire. Without GPUs, tests that ask for them run on the CPU where that is possible.
The last line is `N passed, N failed, N skipped`: cases that pass on both; that pass with files and fail with peers; all others.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

FOLDER = pathlib.Path(__file__).resolve().parent
# The package of this checkout, if its core has been put there; otherwise PYTHON has one installed.
PACKAGE = str(FOLDER.parents[1]) if any((FOLDER.parents[1] / "shardwire").glob("_core.*.so")) else ""
FILES = [
    "checkpoint/test_dtensor_checkpoint.py",
    "checkpoint/test_dtensor_resharding.py",
    "checkpoint/test_fsdp_tp_checkpoint_conversion.py",
    "checkpoint/test_hsdp_checkpoint.py",
    "checkpoint/fsdp/test_fsdp_dsd.py",
    "checkpoint/e2e/test_pipeline.py",
    "checkpoint/e2e/test_e2e_save_and_load.py",
    "_composable/test_composability/test_2d_composability.py",
]
NOT_REPLACED = {
    "checkpoint/test_state_dict.py": "it neither saves nor loads: set_state_dict() gets what get_state_dict() gave, in memory",
    "fsdp/test_fsdp_optim_state.py": "it neither saves nor loads: FSDP1's own functions turn one state dict into another in memory",
}
# These ask how files behave.
ABOUT_FILES = {"test_overwrite": "a writer that may not overwrite looks for a file"}


@dataclasses.dataclass
class Run:
    cases: dict[str, str] = dataclasses.field(default_factory=dict)  # passed, failed or skipped
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)
    calls: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    moved: set[str] = dataclasses.field(default_factory=set)  # cases that saved or loaded through peers
    broken: str = ""  # why there are no results

    def named(self, result: str) -> list[str]:
        return sorted(case for case, found in self.cases.items() if found == result)

    def __str__(self) -> str:
        if self.broken:
            return "no results: " + self.broken
        counts = ", ".join(f"{len(self.named(result))} {result}" for result in ("passed", "failed", "skipped"))
        return f"{len(self.cases) - len(self.named('skipped'))} run: {counts}"


def run(python: str, file: pathlib.Path, peers: bool, on_cpu: bool, seconds: int) -> Run:
    found = Run()
    with tempfile.TemporaryDirectory() as folder:
        log, results = pathlib.Path(folder, "log"), pathlib.Path(folder, "results.xml")
        log.touch()
        paths = [str(FOLDER / "inside"), PACKAGE, os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1",
                       "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "TORCH_CPP_LOG_LEVEL": "ERROR", "TMPDIR": folder,
                       "TORCHS_OWN_PEERS": str(log) if peers else "", "TORCHS_OWN_CPU": "1" if on_cpu else "",
                       "TORCHS_OWN_NAMES_GPU": "1" if re.search(r"cuda|self\.rank\)", file.read_text()) else ""}
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--noconftest",
                   "-c", os.devnull, "--rootdir", str(file.parent), f"--junitxml={results}", str(file)]
        with open(folder + "/output", "w+") as output:
            started = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True)
            try:
                code = started.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)  # its ranks too
                started.wait()
                found.broken = f"it does not end within {seconds} s"
                return found
            output.seek(0)
            said = output.read()
        if not results.exists() or code not in (0, 1, 5):
            found.broken = f"pytest ends with {code}: {said[-2000:]}"
            return found
        for case in xml.parse(results).getroot().iter("testcase"):
            name = case.get("classname", "").rpartition(".")[2] + "." + case.get("name", "")
            problem = next(iter(case), None)
            kinds = {child.tag: child for child in case}
            wrong = kinds.get("failure", kinds.get("error"))
            found.cases[name] = "failed" if wrong is not None else "skipped" if "skipped" in kinds else "passed"
            if wrong is not None or "skipped" in kinds:
                problem = wrong if wrong is not None else kinds["skipped"]
                found.reasons[name] = last_line(problem)
        for line in log.read_text().splitlines():
            what, _, case = line.partition("\t")
            found.calls[what] += 1
            if what.endswith("through peers"):
                found.moved.add(case)
    return found


def last_line(problem: xml.Element) -> str:
    """The error of the rank that failed, or why a case was skipped."""
    error = re.compile(r"(E\s+)?[\w.]*(Error|Exception|Skipped)\b")
    lines = [line.strip() for line in (problem.text or "").splitlines() if error.match(line.strip())]
    return (lines[-1] if lines else problem.get("message", "")).removeprefix("E").strip()[:200]


def compare(name: str, files: Run, peers: Run) -> tuple[int, int, int]:
    moved = sorted(case for case in peers.named("passed") if case.rpartition(".")[2] in peers.moved)
    calls = ", ".join(f"{count} times {what}" for what, count in sorted(peers.calls.items())) or "it never saves or loads"
    print(f"{name}\n  with files: {files}\n  with peers: {peers}")
    print(f"  {len(moved)} of the cases that passed with peers moved data between them ({calls})")
    if files.broken:
        return 0, 0, 1
    if peers.broken:
        return 0, 1, 0
    if not files.cases:
        print("  not run: it has no case for this machine")
        return 0, 0, 1
    if not files.named("passed") and not files.named("failed"):
        print("  not run: every case is skipped")
    about_files = {case: reason for case in files.cases for known, reason in ABOUT_FILES.items() if case.endswith(known)}
    broken = [case for case in files.named("passed") if peers.cases.get(case) != "passed" and case not in about_files]
    good = [case for case in files.named("passed") if peers.cases.get(case) == "passed"]
    print("  passes with files, fails with peers: " + ("none" if not broken else ""))
    for case in broken:
        print(f"    {case}: {peers.reasons.get(case, 'not run')}")
    for case, reason in about_files.items():
        if case in files.named("passed") and case not in good:
            print(f"  not replaced: {case}: {reason}")
    for case in files.named("failed"):
        print(f"  fails with files: {case}: {files.reasons[case]}; with peers: {peers.cases.get(case)}")
    for case in files.named("skipped"):
        print(f"  skipped: {case}: {files.reasons[case]}")
    sys.stdout.flush()
    return len(good), len(broken), len(files.cases) - len(good) - len(broken)


def main() -> int:
    parser = argparse.ArgumentParser(prog="torchs_own", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", default=os.environ.get("TORCH_CHECKOUT"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--seconds", type=int, default=1800, help="the time that one file may take")
    options = parser.parse_args()
    if not options.checkout:
        for name in [*FILES, *NOT_REPLACED]:
            print(f"skipped: test/distributed/{name}: no checkout of torch is given (an argument, or TORCH_CHECKOUT)")
        print(f"0 passed, 0 failed, {len(FILES) + len(NOT_REPLACED)} skipped")
        return 0
    question = "import pytest, expecttest, torch, shardwire.torch; print(torch.__version__, torch.accelerator.device_count())"
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH", "")]))
    asked = subprocess.run([options.python, "-c", question], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if asked.returncode:
        print(f"not run: {options.python} cannot import what is needed: {asked.stderr.strip().splitlines()[-1]}")
        print(f"0 passed, 0 failed, {len(FILES) + len(NOT_REPLACED)} skipped")
        return 1
    version, devices = asked.stdout.split()
    on_cpu = int(devices) < 4
    print(f"torch {version}, " + (f"{devices} GPUs: everything runs on the CPU" if on_cpu else f"{devices} GPUs"), flush=True)
    total = [0, 0, 0]
    for name in FILES:
        if options.only not in name:
            continue
        file = pathlib.Path(options.checkout, "test/distributed", name).resolve()
        if not file.exists():
            print(f"skipped: {name}: the checkout does not have it", flush=True)
            total[2] += 1
            continue
        counts = compare(name, *(run(options.python, file, peers, on_cpu, options.seconds) for peers in (False, True)))
        total = [old + new for old, new in zip(total, counts)]
    for name, reason in NOT_REPLACED.items():
        if options.only in name:
            print(f"not replaced: {name}: {reason}")
            total[2] += 1
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
