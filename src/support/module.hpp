// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

// A module is a part of this library in a file of its own, since it brings a library that programs should not have to load
// before they use it. With C linkage it defines
//   const char* shardwire_module_build();  module_build of support/module_build.hpp
//   const void* shardwire_module_table();  what the user of the module and the module have agreed on
// It shares headers with this library and no object code: what it needs of this library it is linked with itself.
namespace shardwire::support {

struct Module {
  const void* table = nullptr;  ///< null when the module is not to be had
  std::string why_not{};
};

/// Loads libshardwire-<name>.so out of the first of module_folders() that has it. It stays loaded.
Module load_module(std::string_view name);
Module load_module(std::string_view name, const std::vector<std::string>& folders);

/// Where modules are looked for, best first. Defined once for what is installed and once for the build folder.
std::vector<std::string> module_folders();

}  // namespace shardwire::support
