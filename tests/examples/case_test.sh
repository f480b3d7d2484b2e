#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the plan of the example's case with examples/README.md: case_test.sh SOURCE_ROOT SHARDWIRE
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$2" plan --totals "$1/examples/cases/own_model.json" >"$place/output.txt"
python3 "$1/tests/examples/shown.py" "$1/examples/README.md" own_model.json "$place/output.txt"
