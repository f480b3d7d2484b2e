#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty place and builds a program there with nothing but pkg-config:
# install_test.sh MESON BUILD_DIR SOURCE.cpp COMPILER...
set -euo pipefail

meson=$1 build=$2 source=$3
shift 3
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

DESTDIR="$place" "$meson" install -C "$build" --no-rebuild --quiet
pc=$(find "$place" -name shardwire.pc)
[[ -n $pc ]] || { echo "no shardwire.pc was installed"; exit 1; }
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$place
read -ra flags <<<"$(pkg-config --cflags --libs shardwire)"
echo "flags: ${flags[*]}"

cd "$place"
"$@" -std=c++20 -Wall -Wextra -Werror "$source" "${flags[@]}" -pthread -o program
libdir=$(dirname "$(find "$place" -name 'libshardwire.so')")
LD_LIBRARY_PATH=$libdir ./program
LD_LIBRARY_PATH=$libdir "$(find "$place" -path '*/bin/shardwire')" --version
