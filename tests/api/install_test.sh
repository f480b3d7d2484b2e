#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a program against an installed copy with pkg-config only: install_test.sh MESON BUILD_DIR SOURCE COMPILER...
source "$(dirname "${BASH_SOURCE[0]}")/installed.sh" "$1" "$2"
source=$3
shift 3

echo "compile: $(pkg-config --cflags shardwire)"
echo "link: $(pkg-config --libs shardwire)"
echo "link statically: $(pkg-config --static --libs shardwire)"
build program "$source" "$@"
LD_LIBRARY_PATH=$libdir ./program
"$command" --version
