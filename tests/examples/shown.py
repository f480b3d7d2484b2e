#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what an example prints with what a page shows of it: shown.py PAGE NAME OUTPUT [--sorted]

The page shows it in the block after the comment <!-- printed by NAME -->. Numbers of jobs are masked in both. `--sorted`: ranks
print in any order.
"""
import difflib
import pathlib
import re
import sys

page, name, output = (sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).read_text())
block = re.search(rf"<!-- printed by {re.escape(name)} -->\n```\w*\n(.*?)^```$", pathlib.Path(page).read_text(), re.S | re.M)
if block is None:
    sys.exit(f"{page} shows nothing that is printed by {name}")
expected, printed = (re.sub(r"job \d+", "job N", text).splitlines() for text in (block[1], output))
if "--sorted" in sys.argv:
    expected.sort()
    printed.sort()
difference = list(difflib.unified_diff(expected, printed, page, "printed", lineterm=""))
for line in difference:
    print(line)
sys.exit(1 if difference else 0)
