#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a script that loads an installed copy of the library: c_ctypes.sh MESON BUILD_DIR SCRIPT
source "$(dirname "${BASH_SOURCE[0]}")/installed.sh" "$1" "$2"
include=$(dirname "$(found -path '*/shardwire/shardwire.h')")
LD_LIBRARY_PATH=$libdir timeout 120 python3 "$3" "$(soname)" "$include"
