# SPDX-License-Identifier: Apache-2.0
# What .ci/run and .ci/full share; they source it. Outline: counting; sections; packages; builds; tests; the sections.
# shellcheck shell=bash
set -uo pipefail
exec </dev/null

passed=0 failed=0 skipped=0
failures=() left_out=() unstable=() minutes=()
log=$(mktemp)
trap 'rm -f "$log" "$launchers_output"' EXIT
state=${XDG_CACHE_HOME:-$HOME/.cache}/shardwire-ci

started() { printf '\n== %s (%(%H:%M:%S)T)\n' "$1" -1; }
# remember NAME: that it failed, and the first lines of its output that say why.
remember() {
  failures+=("FAILED $1" "$(grep -E 'error: |ERROR: |^FAILED|WARNING: Thread|runtime error' "$log" | cut -c1-300 | head -n 12)")
}
count_failure() {
  failed=$((failed + 1))
  remember "$1"
}

# check NAME COMMAND...: one check, passed or failed by its exit status. Shows output only of what failed.
check() {
  local name=$1
  shift
  started "$name"
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1))
    echo passed
  else
    tail -n 200 "$log"
    count_failure "$name"
    echo "FAILED $name"
  fi
}

# cases NAME COMMAND...: a run of tests whose last line counts its cases.
cases() {
  local name=$1 status=0 line
  shift
  started "$name"
  "$@" 2>&1 | tee "$log" || status=$?
  line=$(tail -n 1 "$log")
  mapfile -t -O "${#unstable[@]}" unstable < <(grep '^UNSTABLE ' "$log")
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    ((BASH_REMATCH[2] == 0)) || remember "$name"
    ((status == 0 || BASH_REMATCH[2] > 0)) || count_failure "$name (exit status $status)"
  else
    count_failure "$name (no count of cases, exit status $status)"
  fi
}

# once_more NAME COMMAND...: if a run of tests fails, it runs once more, and its last line counts. Both outputs are shown.
once_more() {
  local name=$1
  shift
  "$@" && return
  echo "-- $name runs once more"
  local output
  output=$("$@") || { printf '%s\n' "$output" && return 1; }
  printf '%s\nUNSTABLE %s\n%s\n' "$output" "$name" "$(tail -n 1 <<<"$output")"
}

# section NAME MINUTES COMMAND...: prints the minutes that it takes. Beyond `limit` minutes, if that is set, it is not begun, and
# the run fails by its name. So it does if the section counts nothing, or is ended by a signal.
limit=
current=
section() {
  local name=$1 usual=$2 began=$SECONDS before=$failed counted=$((passed + failed + skipped)) line
  shift 2
  if [[ -n $limit ]] && ((SECONDS + usual * 60 > limit * 60)); then
    left_out+=("LEFT OUT $name")
    failed=$((failed + 1))
    return 1
  fi
  : >"$log"  # what fails before it has an output of its own shows none of another section
  current=$name
  "$@"
  current=
  ((passed + failed + skipped > counted)) || count_failure "$name (nothing ran)"
  printf -v line '%5.1f min  %s%s' "$(((SECONDS - began) * 10 / 60))e-1" "$name" "$( ((failed == before)) || echo ' FAILED')"
  minutes+=("$line")
  echo "-- $line"
  ((failed == before))
}

# unchanged PATH... -- NAME MINUTES FUNCTION...: a section that is left out if its inputs, the tracked files at the paths and the
# installed packages, are those of its last run that passed on this machine. Only for sections that depend on these alone.
unchanged() {
  local paths=() stamp
  while [[ $1 != -- ]]; do paths+=("$1") && shift; done
  shift
  stamp=$state/passed/$3-$({ declare -f "$3" && git ls-files -s -- .ci "${paths[@]}" && git diff HEAD -- .ci "${paths[@]}" &&
    dpkg-query -W; } | sha256sum | cut -c1-32)
  if [[ -e $stamp ]]; then
    started "$1"
    echo 'unchanged since it passed on this machine'
    skipped=$((skipped + 1))
    minutes+=("  0.0 min  $1 (unchanged since it passed)")
  elif section "$@"; then
    mkdir -p "${stamp%/*}" && touch "$stamp"
  fi
}

# verdict: the last lines. Returns whether all is well.
verdict() {
  ((passed + failed > 0)) || count_failure 'nothing ran'
  # One test in ten thousand that fails by chance is reported; three are a disease.
  ((${#unstable[@]} < 3)) || { failed=$((failed + 1)) && failures+=("FAILED ${#unstable[@]} tests are unstable"); }
  echo
  printf '%s\n' "${minutes[@]}"
  printf '%s min in all\n' "$((SECONDS / 60))"
  ! command -v ccache >/dev/null || ccache --show-stats 2>/dev/null | grep -E 'Hits|Misses' | head -n 2
  echo
  local line
  for line in "${left_out[@]}" "${failures[@]}" "${unstable[@]}"; do echo "$line"; done
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0))
}

cut_off() {
  trap '' TERM INT HUP  # those that also went to the whole group
  count_failure "${current:-between two sections} (ended by a signal)"
  verdict
  exit 1
}
trap cut_off TERM INT HUP

# install_packages PACKAGE...
install_packages() {
  local tool missing=()
  for tool in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$tool" 2>/dev/null) == installed ]] || missing+=("$tool")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  export DEBIAN_FRONTEND=noninteractive
  apt-get -y -q update
  apt-get -y -q install --no-install-recommends "${missing[@]}"
}
# Compilers and checkers.
tools=(ca-certificates git g++ ccache clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev codespell g++-aarch64-linux-gnu qemu-user)
# What the suite uses where it is there, and skips aloud where not.
tools+=(cmake iproute2 libopenmpi-dev openmpi-bin slurm-wlm munge)
# What pip builds the Python package with, beside what quickstart installs.
tools+=(python3-venv python3-dev)
# What the virtual machine with RDMA takes.
tools+=(qemu-system-x86 busybox-static kmod cpio rdma-core)

# A toolkit for the CUDA module, where the machine has none: only what nvcc needs, 300 MB, and kept for the next run. No GPU is needed.
cuda_toolkit() {
  command -v nvcc || [[ -x /usr/local/cuda/bin/nvcc ]] && return
  [[ -n $(compgen -G "$toolkit_nvcc") ]] && return
  python3 -m venv build-ci-cuda
  build-ci-cuda/bin/pip install --quiet --no-cache-dir nvidia-cuda-{nvcc,crt,cccl,runtime}==13.0.* nvidia-{nvvm,nvtx}==13.0.*
}
toolkit_nvcc="$PWD/build-ci-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc"

machine() {
  check 'packages' install_packages "${tools[@]}"
  check "CUDA's compiler" cuda_toolkit
  local nvcc
  for nvcc in $(compgen -G "$toolkit_nvcc"); do PATH=${nvcc%/nvcc}:$PATH; done
}

# Compilers go through the cache. A clone at another path finds what this one compiled: paths below the clone are cut from what is
# hashed and from what __FILE__ says, and debug information may name the clone that was first.
compiler_cache() {
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
  export CXXFLAGS="-fmacro-prefix-map=$PWD/=" CFLAGS="-fmacro-prefix-map=$PWD/="
  export CC='ccache gcc' CXX='ccache g++'
}

# configure FOLDER OPTIONS...: a fresh build folder, warnings are errors.
configure() {
  local folder=$1
  shift
  rm -rf "$folder"
  meson setup "$folder" -Dwerror=true -Dperf=disabled -Dmpi=disabled "$@"
}

# The tests whose `suite/name` matches, without those of the suite full unless everything is to run. Each line is a name and, after tabs,
# the units that the test runs.
everything=
matching_tests() {
  meson introspect "$1" --tests | python3 -c '
import json, re, sys
for test in json.load(sys.stdin):
    suites = [suite.partition(":")[2] for suite in test["suite"]]
    if any(re.search(sys.argv[1], suite + "/" + test["name"]) for suite in suites) and ("full" not in suites or sys.argv[2]):
        units = [word.removeprefix("--unit=") for word in test["cmd"] if word.startswith("--unit=")]
        print(test["name"], *units, sep="\t")' "$2" "$everything"
}

# configure_for FOLDER PATTERN OPTIONS...: a fresh build folder that compiles only the units of the tests that match. The folder itself
# names them.
configure_for() {
  local folder=$1 pattern=$2
  shift 2
  configure "$folder" "$@" || return
  meson configure "$folder" -Dtest_units="$(matching_tests "$folder" "$pattern" | cut -sf2- | tr '\t' '\n' | sort -u | paste -sd,)"
}

# count_tests FOLDER [MESON OPTIONS...]: counts the cases of the last run in a build folder. What failed, but for reports of
# sanitizers, runs once more, alone.
count_tests() {
  local folder=$1 first=$1/meson-logs/first.json logs again
  shift
  logs=("$folder"/meson-logs/testlog*.json)
  mv "${logs[0]}" "$first"
  mapfile -t again < <(python3 tests/support/summary.py --by-chance "$first")
  if ((${#again[@]} == 0 || ${#again[@]} > 5)); then
    python3 tests/support/summary.py "$first"
    return
  fi
  meson test -C "$folder" ${everything:+--setup full} --no-rebuild --num-processes 1 "$@" "${again[@]##* / }" >/dev/null 2>&1
  logs=("$folder"/meson-logs/testlog*.json)
  python3 tests/support/summary.py "$first" "${logs[0]}"
}

# run_tests FOLDER PATTERN [MESON OPTIONS...]: builds and runs the tests that match, then counts their cases.
run_tests() {
  local folder=$1 pattern=$2 names
  shift 2
  mapfile -t names < <(matching_tests "$folder" "$pattern" | cut -f1)
  if [[ ${#names[@]} -eq 0 ]]; then
    echo "no test matches $pattern"
    return 1
  fi
  rm -f "$folder"/meson-logs/testlog*.json
  # The output of ninja is wanted only when the build breaks, and then meson writes no log.
  meson test -C "$folder" ${everything:+--setup full} --num-processes "$(($(nproc) + 4))" "$@" "${names[@]}" >"$folder/test-output.txt" 2>&1 || true
  local logs=("$folder"/meson-logs/testlog*.json)
  if [[ ! -f ${logs[0]} ]]; then
    tail -n 100 "$folder/test-output.txt"
    return 1
  fi
  count_tests "$folder" "$@"
}

sources() { git ls-files '*.cpp' '*.hpp' '*.c' '*.h'; }
formatted() { sources | xargs clang-format-14 --dry-run -Werror; }
spelled() { git ls-files ':!LICENSE*' ':!tests/fuzz/corpus' ':!tests/fuzz/found' | xargs codespell; }
# Each file has a holder of its copyright and a licence whose text is here.
licensed() {
  python3 -m venv build-ci-reuse && build-ci-reuse/bin/pip install --quiet 'reuse==6.2.*' && build-ci-reuse/bin/reuse lint
}
texts() {
  check 'format' formatted
  check 'spelling' spelled
  check 'white space' .ci/check-text whitespace
  check 'SPDX lines' .ci/check-text spdx
  check 'includes point one way' .ci/check-includes
  [[ -z $everything ]] || check 'licences' licensed
}

# Of the pages and the comments, without a warning.
built_site() {
  install_packages doxygen python3-venv && configure build-ci-site -Dtests=disabled && ninja -C build-ci-site docs
}
site() { check 'documentation site' built_site; }

release_tests() { ./quickstart test || count_tests build; }
suite() {
  cases 'whole suite, gcc release' release_tests
  [[ -z $everything ]] || cases 'the rest of the suite' run_tests build '^full/'
}
# Launchers mostly wait, so they may run beside another section: begin_launchers before it, and launchers after it counts them.
launchers_run='' launchers_output=$(mktemp)
begin_launchers() {
  once_more launchers tests/launchers/check build >"$launchers_output" 2>&1 &
  launchers_run=$!
}
told() { cat "$2" && return "$1"; }
launchers() {
  local status=0
  [[ -n $launchers_run ]] || begin_launchers
  wait "$launchers_run" || status=$?
  cases 'launchers' told "$status" "$launchers_output"
}
# The packages that those tests take: begin_environment makes them beside other sections. If it fails, `package` makes them anew, and shows
# why they cannot be had.
environment_run=''
begin_environment() {
  python/check --environment build-ci-python >/dev/null 2>&1 &
  environment_run=$!
}
# With the library of the suite.
package() {
  local made=()
  if [[ -n $environment_run ]] && wait "$environment_run"; then made=(--made); fi
  cases 'Python package' python/check "${made[@]}" --library build --sample build-ci-python
}
# With a library of its own, all cases, and tests of other frameworks.
own_package() { cases 'Python package with its own library, and adapters' python/check build-ci-python core torch torchrun oracle adapters; }
# In the environment that one of the two has made.
examples() { cases 'examples for Python, PyTorch and Kubernetes' tests/examples/check build-ci-python; }
# Programs alone, out of Debian's package, and kept for the next run: an installed package would start a server.
get_prometheus() {
  command -v prometheus || [[ -x build-ci-prometheus/usr/bin/prometheus ]] && return
  rm -rf build-ci-prometheus && mkdir build-ci-prometheus && apt-get -q update || return
  (cd build-ci-prometheus && apt-get -q download prometheus && dpkg-deb -x prometheus_*.deb .)
}
monitoring() {
  check 'Prometheus' get_prometheus
  local -x PATH=$PATH:$PWD/build-ci-prometheus/usr/bin
  cases 'alerts for Prometheus, and a scrape' run_tests build '^api/examples/(rules|prometheus)$'
}
guest() { cases 'RDMA verbs, in a virtual machine' once_more guest tests/verbs/run --timeout 600 -- tests/verbs/check; }
# The same in two parts, which depend on different files.
guest_contract() {
  cases 'RDMA verbs: the contract of transports' once_more 'guest, contract' \
    tests/verbs/run --timeout 600 -- tests/verbs/check build ucx libfabric
}
guest_sessions() {
  cases 'RDMA verbs: sessions' once_more 'guest, sessions' tests/verbs/run --timeout 600 -- tests/verbs/check build sessions restores faults
}
guest_two_ports() {
  cases 'RDMA verbs, over two ports' once_more 'guest, two ports' tests/verbs/run --nics 2 --timeout 300 -- tests/verbs/check build restores faults
}
# What the guest runs, and what of the library knows a fabric or device memory.
verbs_inputs=(meson.build quickstart transport src/{memory,move,paths,peers,restore,serve} tests/{verbs,support} 'tests/session/rdma*'
              'tests/session/hang*')
verbs_contract_inputs=(meson.build quickstart transport src/{memory,support} tests/{verbs,conformance,support} 'tests/transport/ucx*')

export BOOST_TEST_CATCH_SYSTEM_ERRORS=no  # a signal is the sanitizer's to report
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# Its runtime takes some blocks of thread-local memory of modules for those of an old C library, and then reads far off.
export ASAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_summary=1:intercept_tls_get_addr=0
export LSAN_OPTIONS=suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0
export TSAN_OPTIONS=suppressions=$PWD/tests/support/tsan.supp:history_size=4

# address PATTERN. Lines and functions are all that a report names; the rest of what -g makes costs a sixth of the time.
# Clang's precompiled headers carry times, so that nothing compiled with them is found again.
address() {
  local -x CXX='ccache clang++-14' CXXFLAGS="${CXXFLAGS:-} -g1"
  check 'configure, address and undefined' configure_for build-ci-address "$1" -Doptimization=1 \
    -Dunity=on -Dunity_size=20 -Db_pch=false -Db_sanitize=address,undefined -Db_lundef=false
  cases 'address and undefined, clang' run_tests build-ci-address "$1" --timeout-multiplier 3
}
# The thread sanitizer of these compilers cannot place its shadow memory when the kernel spreads mappings too widely.
thread_wrapper=()
if (($(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28) > 28)) && setarch -R true 2>/dev/null; then
  thread_wrapper=(--wrapper 'setarch -R')
fi
# thread PATTERN. UCX's hooks on memory calls run at the end of a thread, when the sanitizer has already forgotten it, and crash it.
thread() {
  local -x CXXFLAGS="${CXXFLAGS:-} -g1" UCX_MEM_EVENTS=n
  check 'configure, thread' configure_for build-ci-thread "$1" -Doptimization=1 \
    -Dunity=on -Dunity_size=20 -Dcuda=disabled -Db_sanitize=thread -Db_lundef=false
  cases 'thread, gcc' run_tests build-ci-thread "$1" --timeout-multiplier 3 "${thread_wrapper[@]}"
}

# Half of the seeds on each of two processors; the suite runs the first 500 too.
seeds() {
  ninja -C build tests/simulation/run || return
  local first run status=0 runs=()
  for first in 0 25000; do
    build/tests/simulation/run --seeds "$first:$((first + 25000))" --failover &
    runs+=($!)
  done
  for run in "${runs[@]}"; do wait "$run" || status=1; done
  return "$status"
}
simulation() { check 'simulated sessions, 50,000 seeds' seeds; }
fuzzing() {
  local -x CC='ccache clang-14' CXX='ccache clang++-14'
  cases 'fuzzing' tests/fuzz/run 60
}
planted() { cases 'planted bugs' tests/planted/run; }

# What perf/gpu carries to a machine with a GPU starts in a root with Debian's base alone, without a network: a Python 3.12 of pyenv is laid
# beside it.
in_empty_root() {
  local root=$1 python=$2
  [[ -n $python ]] || { echo 'there is no Python 3.12 of pyenv' && return 1; }
  debootstrap --variant=minbase bookworm "$root" && "$python/bin/python" -m pip wheel --quiet --no-deps -w "$root/wheel" . &&
    perf/gpu --bundle "$root/bundle" --wheel "$(compgen -G "$root/wheel/shardwire-*.whl")" &&
    mkdir -p "$root${python%/*}" && cp -r "$python" "$root${python%/*}" || return
  unshare --net --pid --fork --mount-proc="$root/proc" chroot "$root" env -i PATH="$python/bin:/usr/bin:/bin" bash -c '
    /bundle/go --rows /go.jsonl >/go.txt; [[ $? == 1 && $(tail -n 1 /go.txt) == "0 passed, 0 failed, 8 skipped" ]] || exit
    /bundle/build/tests/gpu_tests --unit=memory/gpu; [[ $? == 77 ]] || exit
    /bundle/build/perf/perf_device_copy; [[ $? == 2 ]] || exit
    PYTHONPATH=/bundle/site python3 -c "import shardwire; print(shardwire.__version__)"' || { cat "$root/go.txt"; return 1; }
}
empty_root() {
  local place python
  place=$(mktemp -d)
  python=$(compgen -G "$HOME/.pyenv/versions/3.12.*" | tail -n 1)
  check 'programs for a GPU' ninja -C build tests/gpu_tests perf/perf_device_copy
  check 'debootstrap' install_packages debootstrap
  check 'bundle for a GPU, in an empty root' in_empty_root "$place" "$python"
  rm -rf "$place"
}

# Wheels, in a root of Debian 13; Debian's packages and the image of Containerfile, on a Debian 12. Neither root has a compiler.
wheels() {
  check 'tools for wheels' install_packages cmake dpkg-dev debootstrap iproute2
  cases 'wheels' tests/packages/wheels
}
debian_tools() {
  install_packages dpkg-dev debhelper help2man lintian debootstrap iproute2 buildah && apt-get -y -q build-dep ./
}
debian() {
  check 'tools for packages and images' debian_tools
  cases 'Debian packages and the image' tests/packages/debian
}

kernels() { check 'copy kernels for aarch64, emulated' tests/memory/neon_check; }
benchmarks() { check 'benchmarks' ninja -C build benchmarks; }

features=(ucx libfabric pmix tls cuda nccl)
without_features() {
  local off=("${features[@]/#/-D}")
  if [[ -n $everything ]]; then
    configure build-ci-without -Doptimization=0 -Dunity=on -Dunity_size=20 -Dtests=disabled "${off[@]/%/=disabled}"
  else
    # As the build of the suite: what no feature changes is found in the cache. NCCL's sources take no library; without them all sources
    # would stand in other groups.
    rm -rf build-ci-without
    meson setup build-ci-without --buildtype=release -Dunity=on -Dunity_size=20 -Dtests=disabled -Dperf=disabled -Dmpi=disabled \
      -D{ucx,libfabric,pmix,tls,cuda}=disabled
  fi && ninja -C build-ci-without product && build-ci-without/shardwire --version
}
no_features() { check 'build without any feature' without_features; }
no_features_inputs=(meson.build meson_options.txt include perf schema src subprojects transport 'docs/*meson.build')
# All that is installed, and the benchmarks, each source by itself: the other builds compile sources in groups and with precompiled
# headers, so what a source gets only from others shows here. When a feature is off, only what differs is compiled again.
each_alone() {
  configure build-ci-features -Doptimization=0 -Db_pch=false -Dtests=disabled -Dperf=enabled -Dmpi=enabled "$@" &&
    ninja -C build-ci-features all benchmarks
}
with_features() {
  meson configure build-ci-features "$@" && ninja -C build-ci-features product && build-ci-features/shardwire --version
}
# All of them have to be there, then each is off.
each_feature_off() {
  local feature all=("${features[@]/#/-D}")
  local -x CC='ccache clang-14' CXX='ccache clang++-14'
  check 'each source alone, with all features' each_alone "${all[@]/%/=enabled}"
  for feature in "${features[@]}"; do check "build without $feature" with_features "${all[@]/%/=enabled}" "-D$feature=disabled"; done
}
# Needs to know how each source is compiled alone, and generated headers.
tidied() {
  configure build-ci-tidy -Db_pch=false -Dtests=disabled || return
  ninja -C build-ci-tidy -t targets all | sed -n 's/^\(.*\.h\(pp\)\?\): CUSTOM_COMMAND$/\1/p' | xargs ninja -C build-ci-tidy || return
  git ls-files 'src/geometry/*.cpp' 'src/plan/*.cpp' 'src/support/*.cpp' |
    xargs -P "$(nproc)" -n 2 clang-tidy-14 --quiet -p build-ci-tidy
}
tidy() {
  local -x CC=clang-14 CXX=clang++-14
  check 'clang-tidy' tidied
}
