#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that public headers include only the standard library and each other, but for two that are named after what they
# include: own_includes.sh include/shardwire
set -euo pipefail

foreign=$(grep -rnE '^[[:space:]]*#[[:space:]]*include' "$1" |
  grep -vE '/(cuda\.hpp:[0-9]+:#include <cuda_runtime_api\.h>|nccl\.hpp:[0-9]+:#include <nccl\.h>)$' |
  grep -vE 'include[[:space:]]+(<[a-z0-9_]+>|<std(bool|def|int)\.h>|"shardwire/[a-z0-9_/]+\.h(pp)?")' || true)
if [[ -n $foreign ]]; then
  printf 'included by a public header:\n%s\n' "$foreign"
  exit 1
fi
