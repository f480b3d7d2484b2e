#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts a program as the members of one job, with the variables that torchrun sets: run_members.sh COUNT PROGRAM...
set -euo pipefail

count=$1
shift
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port - 1)) SHARDWIRE_PORT=$port

members=()
trap 'kill "${members[@]}" 2>/dev/null || true' EXIT
for ((rank = 0; rank < count; ++rank)); do
  RANK=$rank "$@" &
  members+=($!)
done
status=0
for member in "${members[@]}"; do wait "$member" || status=$?; done
exit "$status"
