#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `ninja docs` runs: build.sh SOURCE_ROOT FOLDER VERSION VERSION_H. Leaves the site at FOLDER/html. Warnings are errors.
set -euo pipefail
source=$1 folder=$(realpath -m "$2") version=$3 version_h=$(realpath "$4")
cd "$source"
export PYTHONDONTWRITEBYTECODE=1

if ! command -v doxygen >/dev/null; then
  echo "docs: doxygen is missing; on Debian: apt-get install --no-install-recommends doxygen" >&2
  exit 1
fi
# The environment is made again when the requirements change.
stamp=$folder/venv/$(sha256sum docs/requirements.txt | cut -c1-16)
if [[ ! -e $stamp ]]; then
  rm -rf "$folder/venv"
  if ! python3 -m venv "$folder/venv"; then
    echo "docs: python3 cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
    exit 1
  fi
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check -r docs/requirements.txt
  touch "$stamp"
fi

rm -rf "$folder/xml" "$folder/html"
doxygen - <<END
@INCLUDE         = docs/Doxyfile
INPUT            = include/shardwire include/shardwire/c "$version_h"
STRIP_FROM_PATH  = include "${version_h%/shardwire/c/version.h}"
OUTPUT_DIRECTORY = "$folder"
END
python3 docs/header_xml.py "$folder/xml"
"$folder/venv/bin/sphinx-build" -W --keep-going -q -E -b html -c docs -d "$folder/doctrees" \
  -D "breathe_projects.shardwire=$folder/xml" -D "version=$version" -D "release=$version" . "$folder/html"
echo "docs: $(find "$folder/html" -name '*.html' | wc -l) pages: $folder/html/index.html"
