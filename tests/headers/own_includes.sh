#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that public headers include only the standard library and each other: own_includes.sh include/shardwire
set -euo pipefail

foreign=$(grep -rnE '^[[:space:]]*#[[:space:]]*include' "$1" |
  grep -vE 'include[[:space:]]+(<[a-z0-9_]+>|<std(bool|def|int)\.h>|"shardwire/[a-z0-9_/]+\.h(pp)?")' || true)
if [[ -n $foreign ]]; then
  printf 'included by a public header:\n%s\n' "$foreign"
  exit 1
fi
