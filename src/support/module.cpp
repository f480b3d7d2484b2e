// SPDX-License-Identifier: Apache-2.0
#include "support/module.hpp"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <cstring>
#include <filesystem>

#include "support/module_build.hpp"

namespace shardwire::support {
namespace {

template <typename Function>
Function* find(void* library, const char* symbol) {
  return reinterpret_cast<Function*>(::dlsym(library, symbol));
}

Module load(const std::string& path) {
  // Never unloaded: libraries of fabrics start threads and install handlers that would not survive.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return {.why_not = ::dlerror()};
  const auto build = find<const char*()>(library, "shardwire_module_build");
  const auto table = find<const void*()>(library, "shardwire_module_table");
  if (build == nullptr || table == nullptr) return {.why_not = path + " is no module of shardwire"};
  if (std::strcmp(build(), module_build) != 0) {
    return {.why_not =
                fmt::format("{} is of another build of shardwire ({}, this is {})", path, build(), module_build)};
  }
  return {.table = table()};
}

}  // namespace

Module load_module(std::string_view name, const std::vector<std::string>& folders) {
  const std::string file = fmt::format("libshardwire-{}.so", name);
  for (const std::string& folder : folders) {
    const std::string path = fmt::format("{}/{}", folder, file);
    std::error_code unreadable;
    if (std::filesystem::exists(path, unreadable)) return load(path);
  }
  return {.why_not = fmt::format("{} is not installed (looked for in {})", file, fmt::join(folders, ", "))};
}

Module load_module(std::string_view name) {
  if (const std::string_view why = why_left_out(name); !why.empty()) return {.why_not = std::string(why)};
  return load_module(name, module_folders());
}

}  // namespace shardwire::support
