#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a program against an installed copy with CMake: cmake_test.sh MESON BUILD_DIR SOURCE VERSION COMPILER...
if ! command -v cmake >/dev/null; then
  echo "skipped: there is no cmake (Debian: cmake)"
  exit 77
fi
source "$(dirname "${BASH_SOURCE[0]}")/installed.sh" "$1" "$2"
source=$3 version=$4
shift 4

# project VERSION: creates a project that requests this version.
project() {
  mkdir -p project
  cat >project/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.16)
project(outside LANGUAGES CXX)
find_package(Threads REQUIRED)
find_package(shardwire $1 CONFIG REQUIRED)
message(STATUS "found shardwire \${shardwire_VERSION}")
add_executable(program "$source")
target_link_libraries(program PRIVATE shardwire::shardwire Threads::Threads)
END
  rm -rf configured
  CXX="$compiler" CXXFLAGS='-Wall -Wextra -Werror' cmake -S project -B configured -DCMAKE_PREFIX_PATH="$prefix"
}
compiler=$*
prefix=${command%/bin/shardwire}

IFS=. read -r major minor _ <<<"$version"
for accepted in '' "$version" "$major.$minor"; do
  project "$accepted" | grep "found shardwire $version"
done
for refused in "$major.$((minor + 1))" "$((major + 1))"; do
  if project "$refused" >refused.txt 2>&1; then
    echo "shardwire $refused was found"
    exit 1
  fi
  grep -F "\"$refused\"" refused.txt
done

project "$version" >/dev/null
cmake --build configured
LD_LIBRARY_PATH= configured/program
