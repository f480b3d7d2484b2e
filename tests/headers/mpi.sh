#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Includes shardwire/mpi.hpp after <mpi.h>, twice, and checks the error without <mpi.h>: mpi.sh COMPILER OPTIONS...
set -euo pipefail

header='#include "shardwire/mpi.hpp"'
if said=$("$@" -x c++ - <<<"$header" 2>&1); then
  echo 'compiled without <mpi.h>'
  exit 1
fi
grep -F 'include <mpi.h> first' <<<"$said"
if ! command -v mpicxx >/dev/null; then
  echo 'skipped with <mpi.h>: there is no mpicxx (Debian: libopenmpi-dev)'
  exit 77
fi
flags=$(mpicxx -showme:compile 2>/dev/null || mpicxx -compile_info | cut -d ' ' -f 2-)
read -ra flags <<<"$flags"
"$@" -DOMPI_SKIP_MPICXX "${flags[@]/#-I/-isystem}" -x c++ - <<<$'#include <mpi.h>\n'"$header"$'\n'"$header"
