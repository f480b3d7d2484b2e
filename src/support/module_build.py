#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names what a library and its modules have to agree on: module_build.py VERSION COMPILER HEADER... > module_build.hpp"""
import hashlib
import pathlib
import sys

version, compiler, *headers = sys.argv[1:]
shared = hashlib.sha256()
for header in headers:
    shared.update(pathlib.Path(header).read_bytes())
print(f"""// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardwire::support {{

/// Version, compiler, and a digest of the headers that modules and the library share.
inline constexpr char module_build[] = "{version} {compiler} {shared.hexdigest()[:16]}";

}}  // namespace shardwire::support""")
