#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up a Meson test log, one line per run of `meson test`: summary.py build/meson-logs/testlog.json [AGAIN]

Boost runners count each case by the line that tests/support/main.cpp prints; any other program counts as one. Failures
come with their errors and the end of their output, skips with their reason. The last line is `N passed, N failed, N skipped`. The exit
status is 1 when anything failed, when nothing ran, and when a whole suite ran nothing.

AGAIN is the log of a second run of what failed: a test that passes there counts as passed, and is named as UNSTABLE.
`summary.py --by-chance LOG` prints the names of failed tests that may run again: not those with a sanitizer's report.
"""
import itertools
import json
import re
import sys

CASES = re.compile(r"^cases: (\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
SKIPPED = re.compile(r"^skipped: (.*)$", re.M)
MAY_RUN_NOTHING = {"gpu"}  # suites that need hardware most machines lack
ERROR = re.compile(r"error: |ERROR: |runtime error|WARNING: ThreadSanitizer|terminate called")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
REPORT = re.compile(r"Sanitizer|runtime error:")
TAIL_LINES = 40


def counts(test):
    """(passed, failed, skipped) of one test program."""
    line = None
    for line in CASES.finditer(test.get("stdout", "")):
        pass  # a program that runs other runners prints their lines first, and its own last
    passed, failed, skipped = map(int, line.groups()) if line else (0, 0, 0)
    result = test["result"]
    if result in ("OK", "EXPECTEDFAIL"):
        return (passed, failed, skipped) if line else (1, 0, 0)
    if result == "SKIP":
        return passed, failed, max(skipped, 1)
    # A crash, a timeout or a leak found at exit is a separate failure in addition to failed cases.
    return passed, max(failed, 1), skipped


def suites(test):
    """Meson names a test `project:suite+suite / name`."""
    return filter(None, test["name"].partition(" / ")[0].partition(":")[2].split("+"))


def shown(text):
    """The end of the output, and lines before it that name an error. Lines that repeat are shown once."""
    lines = [(line, len(list(same))) for line, same in itertools.groupby(COLOURS.sub("", text).rstrip().splitlines())]
    lines = [f"{line} ({times} times)" if times > 1 and line else line for line, times in lines]
    start = max(0, len(lines) - TAIL_LINES)
    errors = [line for line in lines[:start] if ERROR.search(line)][:TAIL_LINES]
    return "\n".join("    " + line for line in errors + (["..."] if start else []) + lines[start:])


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            return [json.loads(line) for line in log if line.strip()]
    except OSError as error:
        print(f"no test log: {error}")
        return []


def output(test):
    return test.get("stdout", "") + test.get("stderr", "")


def main():
    by_chance = sys.argv[1:2] == ["--by-chance"]
    paths = sys.argv[2:] if by_chance else sys.argv[1:]
    if len(paths) not in ([1] if by_chance else [1, 2]):
        print(__doc__, file=sys.stderr)
        return 2
    tests = read(paths[0])
    if by_chance:
        for test in tests:
            if counts(test)[1] and not REPORT.search(output(test)):
                print(test["name"])
        return 0
    again = {test["name"]: test for test in (read(paths[1]) if len(paths) == 2 else [])}

    total = [0, 0, 0]
    ran = {}
    for test in tests:
        these = counts(test)
        second = again.get(test["name"])
        if these[1] and second and not counts(second)[1]:
            print(f"UNSTABLE {test['name']} ({test['result'].lower()}, exit status {test.get('returncode')})")
            print(shown(output(test)))
            test, these = second, counts(second)
        total = [a + b for a, b in zip(total, these)]
        for suite in suites(test):
            ran[suite] = ran.get(suite, 0) + these[0] + these[1]
        text = output(test)
        if these[1]:
            print(f"FAILED {test['name']} ({test['result'].lower()}, exit status {test.get('returncode')})")
            print(shown(text))
        if these[2]:
            reasons = SKIPPED.findall(text) or text.strip().splitlines()[-1:] or ["no reason given"]
            for reason in reasons:
                print(f"skipped {test['name']}: {reason}")
    for suite, number in sorted(ran.items()):
        if number == 0 and suite not in MAY_RUN_NOTHING:
            print(f"FAILED suite {suite}: nothing in it ran")
            total[1] += 1
    if total[0] + total[1] == 0:
        print("nothing ran")
    print("{} passed, {} failed, {} skipped".format(*total))
    return 0 if total[0] and not total[1] else 1


if __name__ == "__main__":
    sys.exit(main())
