# SPDX-License-Identifier: Apache-2.0
# For `source installed.sh MESON BUILD_DIR`: installs into an empty folder, which is removed when the script ends.
# pkg-config finds only this library's packages there.
set -euo pipefail

place=$(realpath "$(mktemp -d)")
trap 'rm -rf "$place"' EXIT
DESTDIR="$place" "$1" install -C "$2" --no-rebuild --quiet

found() {
  local all
  mapfile -t all < <(find "$place" "$@")
  [[ ${#all[@]} -eq 1 ]] || { echo "installed: ${#all[@]} files for $*" >&2; return 1; }
  echo "${all[0]}"
}

pc=$(found -name shardwire.pc)
unset PKG_CONFIG_PATH
export PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$place
libdir=$(dirname "$(found -name libshardwire.so)")
command=$(found -path '*/bin/shardwire')
cd "$place"

# Under which programs load the library.
soname() { basename "$(found -type l -name 'libshardwire.so.*')"; }
# build OUTPUT SOURCE COMPILER...: builds a program with only the flags from pkg-config.
build() {
  build_as c++20 "$@"
}
# build_as STANDARD OUTPUT SOURCE COMPILER...
build_as() {
  local standard=$1 output=$2 source=$3 flags
  shift 3
  read -ra flags <<<"$(pkg-config --cflags --libs shardwire)"
  "$@" -std="$standard" -Wall -Wextra -Werror "$source" "${flags[@]}" -pthread -o "$output"
}
