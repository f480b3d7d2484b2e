#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Includes shardwire/NAME.hpp, twice, and checks that its FUNCTION takes a handle of TYPE and no pointer to one:
#   handle.sh NAME FOREIGN_HEADER FUNCTION TYPE COMPILER OPTIONS...
set -euo pipefail

name=$1 foreign=$2 function=$3 type=$4
shift 4
if ! "$@" -x c++ - <<<"#include <$foreign>" 2>/dev/null; then
  echo "skipped: there is no <$foreign>"
  exit 77
fi
header="#include \"shardwire/$name.hpp\""
"$@" -x c++ - <<<"$header"$'\n'"$header"$'\n'"void* taken($type handle) { return shardwire::$function(handle); }"
if "$@" -x c++ - <<<"$header"$'\n'"void* taken($type* handle) { return shardwire::$function(handle); }" 2>/dev/null; then
  echo "$function() takes a pointer to a handle"
  exit 1
fi
