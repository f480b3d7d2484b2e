#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a program in C against an installed copy with pkg-config only, and runs it: c_test.sh MESON BUILD_DIR SOURCE
# COMPILER...
source "$(dirname "${BASH_SOURCE[0]}")/installed.sh" "$1" "$2"
source=$3
shift 3

build_as c11 program "$source" "$@" -Wpedantic
if readelf -d program | grep 'NEEDED.*libstdc++'; then
  echo 'the program itself needs the library of C++'
  exit 1
fi
LD_LIBRARY_PATH=$libdir timeout 240 ./program
