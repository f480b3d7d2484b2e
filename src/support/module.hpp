// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

// A module is a part of this library in a separate file, because it depends on a library that programs should load only
// on use. With C linkage it defines
//   const char* shardwire_module_build();  module_build of support/module_build.hpp
//   const void* shardwire_module_table();  the interface that the module and its user share
// A module shares headers with this library but no object code: it links its own copy of the code that it needs.
namespace shardwire::support {

struct Module {
  const void* table = nullptr;  ///< null if the module is not available
  std::string why_not{};
};

/// Why this build has no module of that name; empty if it has one. A generated source defines it.
std::string_view why_left_out(std::string_view module);

/// Loads libshardwire-<name>.so from the first of module_folders() that has it, unless the build left it out. It stays loaded.
Module load_module(std::string_view name);
Module load_module(std::string_view name, const std::vector<std::string>& folders);

/// Folders that contain modules, best first. Defined once for installed files and once for the build folder.
std::vector<std::string> module_folders();

}  // namespace shardwire::support
