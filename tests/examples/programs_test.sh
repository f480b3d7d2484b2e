#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the examples in C and C++ against an installed copy, by one way of building, and compares what they print with
# examples/README.md and docs/first-restore.md: programs_test.sh MESON BUILD_DIR SOURCE_ROOT cmake|meson|c|mpi COMPILER...
root=$3 way=$4
case $way in
  cmake) needs=cmake package=cmake ;;
  mpi) needs=mpirun package='libopenmpi-dev openmpi-bin' ;;
  *) needs=pkg-config package=pkg-config ;;
esac
if ! command -v "$needs" >/dev/null || { [[ $way == mpi ]] && ! command -v mpicxx >/dev/null; }; then
  echo "skipped: there is no $needs (Debian: $package)"
  exit 77
fi
source "$root/tests/api/installed.sh" "$1" "$2"
meson=$1
shift 4
export LD_LIBRARY_PATH=$libdir

# shown NAME [--sorted]: compares output.txt with `page`.
page=examples/README.md
shown() { python3 "$root/tests/examples/shown.py" "$root/$page" "$1" output.txt "${@:2}"; }
first_restore() {
  local page=docs/first-restore.md
  "$root/tests/api/run_members.sh" 2 configured/first_restore >output.txt
  shown first_restore --sorted
}
# An old rank is killed once it has published, and started again. The barrier keeps the others until the last new rank has started.
replaced() (
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  export WORLD_SIZE=5 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port - 1)) SHARDWIRE_PORT=$port
  members=()
  trap 'kill "${members[@]}" 2>/dev/null || true' EXIT
  start() { RANK=$1 configured/handover >"output.$1" & members+=($!); }
  for member in 0 2 3; do start "$member"; done
  exec {published}< <(RANK=4 exec configured/handover)
  lost=$!
  members+=("$lost")
  read -r -u "$published"
  kill -9 "$lost"
  wait "$lost" || true
  unset 'members[-1]'
  for member in 4 1; do start "$member"; done
  for member in "${members[@]}"; do wait "$member"; done
  cat output.[0-4] >output.txt
  shown handover --sorted
)
case $way in
  cmake)
    CXX="$*" CXXFLAGS='-Wall -Wextra -Werror' cmake -S "$root/examples/cpp" -B configured -DCMAKE_PREFIX_PATH="${command%/bin/shardwire}" \
      -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
    cmake --build configured
    "$root/tests/api/run_members.sh" 4 configured/adam_reshard >output.txt
    shown adam_reshard
    first_restore
    "$root/tests/api/run_members.sh" 5 configured/handover >output.txt
    shown handover --sorted
    ;;
  meson)
    CXX="$*" "$meson" setup configured "$root/examples/cpp" -Dwarning_level=2 -Dwerror=true
    "$meson" compile -C configured handover  # the others are compiled and run by the way of CMake
    replaced
    ;;
  c)
    build_as c11 reshard "$root/examples/c/reshard.c" "$@" -Wpedantic
    "$root/tests/api/run_members.sh" 3 ./reshard >output.txt
    shown reshard --sorted
    ;;
  mpi)
    build mpi_trainer "$root/examples/cpp/mpi_trainer.cpp" mpicxx -DOMPI_SKIP_MPICXX
    mpirun --allow-run-as-root --oversubscribe --mca btl self,vader -n 4 ./mpi_trainer >output.txt
    shown mpi_trainer
    ;;
esac
