// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace shardwire::test {

/// A temporary folder that stands for the root of a file system.
struct FakeRoot {
  std::filesystem::path path;
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "shardwire-root-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    path = name;
  }
  ~FakeRoot() { std::filesystem::remove_all(path); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  void write(const std::string& at, const std::string& content) const {
    const std::filesystem::path file = path.string() + at;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
};

}  // namespace shardwire::test
