#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a program that uses MPI against an installed copy with mpicxx, and runs it: mpi_test.sh MESON BUILD_DIR SOURCE
for tool in mpicxx mpirun; do
  if ! command -v $tool >/dev/null; then
    echo "skipped: there is no $tool (Debian: libopenmpi-dev openmpi-bin)"
    exit 77
  fi
done
source "$(dirname "${BASH_SOURCE[0]}")/installed.sh" "$1" "$2"
build program "$3" mpicxx -DOMPI_SKIP_MPICXX
if ldd "$libdir/libshardwire.so" | grep -E 'libmpi|libpmix'; then
  echo 'the library is linked with MPI or PMIx'
  exit 1
fi
export LD_LIBRARY_PATH=$libdir
launch=(mpirun --allow-run-as-root --oversubscribe --mca btl self,vader -n)
"${launch[@]}" 4 ./program | tee output.txt
[[ $(grep -c 'all is there' output.txt) == 4 ]]
# Errors name the missing rank; the program's exit status tells whether they did. A busy machine may start ranks some seconds
# apart, so that they miss one another, and runs again with more time.
for mode in absent absent-pmix; do
  for missing in 0 1; do
    "${launch[@]}" 3 ./program $mode $missing 3 || "${launch[@]}" 3 ./program $mode $missing 20
  done
done
for mode in again unbuffered receive-fault send-fault; do
  "${launch[@]}" 3 ./program $mode | tee output.txt
  [[ $(grep -c 'all is there' output.txt) == 3 ]]
done
