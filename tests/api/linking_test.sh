#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The cost of linking the installed library, and its behaviour without a fabric's module:
# linking_test.sh MESON BUILD_DIR SOURCE DETAIL_OF_UCX TRANSPORTS COMPILER...
source "$(dirname "${BASH_SOURCE[0]}")/installed.sh" "$1" "$2"
source=$3 detail=$4 transports=$5
shift 5

fail() {
  echo "$1"
  exit 1
}
# loads FILE COMMAND...: whether it, or a child of it, loads a library with such a name before it ends.
loads() {
  local file=$1
  shift
  rm -f "$place"/loaded.*
  LD_DEBUG=files LD_DEBUG_OUTPUT=$place/loaded timeout 60 "$@" >output.txt || fail "$* failed: $(cat output.txt)"
  grep -hoE "file=[^ ]*$file[^ ]*" "$place"/loaded.* | sort -u
}
loads_ucx() { loads 'libuc[mpst]\.so' "$@"; }
program() { LD_LIBRARY_PATH=$libdir timeout 60 ./program "$@"; }

build program "$source" "$@"
# Of the minor version until 1.0, so that a program does not load a library whose structs differ from its own.
version=$(pkg-config --modversion shardwire)
case $version in
  0.*) expected=libshardwire.so.${version%.*} ;;
  *) expected=libshardwire.so.${version%%.*} ;;
esac
needed=$(LC_ALL=C readelf -d program | grep NEEDED)
[[ $needed == *"[$expected]"* ]] || fail "the program does not load $expected, but $needed"
for file in "$libdir/libshardwire.so" "$command" program; do
  if LD_LIBRARY_PATH=$libdir ldd "$file" | grep -E 'libuc[mpst]\.so|libpmix|libcud'; then fail "$file is linked with UCX, PMIx or CUDA"; fi
done
# The module for GPUs contains CUDA's runtime, so that it can report missing parts on any machine.
gpus=$libdir/shardwire/libshardwire-cuda.so
if [[ -e $gpus ]] && ldd "$gpus" | grep -E 'libcud|not found'; then fail "$gpus is linked with CUDA"; fi
program loopback

echo '{"tensors": [{"fqn": "w", "shape": [64]}], "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
       "target": {"ranks": 2, "rules": {"*": {"replicated": true}}}}' >case.json
# Host memory needs no CUDA library.
for line in '--version' 'plan case.json' 'run case.json --transport tcp'; do
  read -ra words <<<"$line"
  if loads libshardwire-cuda "$command" "${words[@]}"; then fail "$line loads what is for GPUs"; fi
done
[[ ! -e $gpus ]] || loads libshardwire-cuda "$command" doctor || fail "doctor does not look for GPUs"

if [[ " $transports " != *' ucx '* ]]; then
  program ucx "$detail"
  exit
fi

export UCX_NET_DEVICES=lo UCX_TLS=tcp  # messages over TCP: no hardware is needed
program ucx
if loads_ucx "$command" --version; then fail "--version loads UCX"; fi

if loads_ucx "$command" plan case.json; then fail "plan loads UCX"; fi
loads_ucx "$command" run case.json --transport ucx || fail "run --transport ucx does not load UCX"
for own in loopback tcp; do
  if loads_ucx "$command" run case.json --transport "$own"; then fail "run --transport $own loads UCX"; fi
done

# UCX's own library fails to load.
mkdir broken
: >broken/libucp.so.0
LD_LIBRARY_PATH=$libdir:$place/broken timeout 60 ./program ucx libucp.so.0

# A module of another build, an invalid one, and a missing one.
module=$libdir/shardwire/libshardwire-ucx.so
"$@" -shared -fPIC -x c++ - -o "$module" <<'END'
extern "C" const char* shardwire_module_build() { return "0.0.1 some-compiler 0123456789abcdef"; }
extern "C" const void* shardwire_module_table() { return nullptr; }
END
program ucx "is of another build of shardwire (0.0.1 some-compiler 0123456789abcdef"
echo 'int nothing;' | "$@" -shared -fPIC -x c++ - -o "$module"
program ucx "is no module of shardwire"
rm "$module"
program ucx "libshardwire-ucx.so is not installed (looked for in $libdir/shardwire, $libdir, /"
"$command" plan case.json
if "$command" run case.json --transport ucx 2>refused.txt; then fail "run --transport ucx works without a module"; fi
cat refused.txt
grep -q "is not installed" refused.txt
