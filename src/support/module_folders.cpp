// SPDX-License-Identifier: Apache-2.0
// For the library and the installed programs: next to this code, even if the installation was moved, then the original
// installation folder.
#include <dlfcn.h>
#include <link.h>

#include <filesystem>

#include "support/install_folders.hpp"
#include "support/module.hpp"

namespace shardwire::support {
namespace {

namespace fs = std::filesystem;

struct Host {
  fs::path file;         ///< contains this code: a shared library, or a program that links it
  const char* folder{};  ///< where such a file is installed
};

Host host() {
  Dl_info info{};
  link_map* map = nullptr;
  const bool known = ::dladdr1(reinterpret_cast<const void*>(&module_folders), &info, reinterpret_cast<void**>(&map),
                               RTLD_DL_LINKMAP) != 0;
  // The program itself has no name there.
  if (known && map != nullptr && map->l_name != nullptr && *map->l_name != '\0') return {map->l_name, install_libdir};
  return {"/proc/self/exe", install_bindir};
}

}  // namespace

std::vector<std::string> module_folders() {
  const fs::path installed = install_module_folder;
  const auto [file, folder] = host();
  std::error_code unreadable;
  const fs::path real = fs::canonical(file, unreadable);
  if (unreadable) return {installed.string()};
  const fs::path moved = (real.parent_path() / installed.lexically_relative(folder)).lexically_normal();
  // Builds and library bundles have everything in one folder.
  std::vector<std::string> out{moved.string(), real.parent_path().string()};
  if (moved != installed) out.push_back(installed.string());
  return out;
}

}  // namespace shardwire::support
