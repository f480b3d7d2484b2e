// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace shardwire::test {

/// A file in the working folder, removed by the destructor.
class File {
 public:
  explicit File(const std::string& name) : path_("test." + std::to_string(::getpid()) + "." + name) {}
  File(const std::string& name, const std::string& text) : File(name) { std::ofstream(path_) << text; }
  ~File() { std::remove(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] nlohmann::json json() const {
    std::ifstream file(path_);
    return file ? nlohmann::json::parse(file) : nlohmann::json();
  }
  [[nodiscard]] std::string text() const {
    std::ifstream file(path_);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }

 private:
  std::string path_;
};

}  // namespace shardwire::test
