#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the marked example of a document to a file, so that it is compiled as printed: extract_example.py TEXT.md OUT"""
import pathlib
import re
import sys

readme, out = map(pathlib.Path, sys.argv[1:])
blocks = re.findall(r"<!-- compiled by tests/api -->\n```(?:cpp|c)\n(.*?)^```$", readme.read_text(encoding="utf-8"), re.S | re.M)
if len(blocks) != 1:
    sys.exit(f"{readme}: {len(blocks)} marked examples instead of 1")
out.write_text(blocks[0], encoding="utf-8")
