#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds examples/monitoring and the metrics of a real job against Prometheus' promtool: rules_test.sh SOURCE_ROOT SHARDWIRE
set -euo pipefail
if ! command -v promtool >/dev/null; then
  echo "SKIPPED: there is no promtool (Debian: prometheus)"
  exit 77
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

promtool check rules "$1/examples/monitoring/rules.yml"
sed "s|RULES|$1/examples/monitoring/rules.yml|" "$1/tests/examples/rules_test.yml" >"$place/rules_test.yml"
promtool test rules "$place/rules_test.yml"

cat >"$place/case.json" <<'CASE'
{"tensors": [{"fqn": "w", "shape": [64, 64]}],
 "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
 "target": {"ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}}}}
CASE
mkdir "$place/metrics"
SHARDWIRE_METRICS_FOLDER=$place/metrics "$2" run "$place/case.json" --transport shm,tcp
"$2" metrics "$place/metrics" >"$place/metrics.txt"
promtool check metrics <"$place/metrics.txt"
for member in 0 1; do
  grep -qx "shardwire_restore_needed_bytes_total{shardwire_member=\"$member\"} 24576" "$place/metrics.txt"
done
