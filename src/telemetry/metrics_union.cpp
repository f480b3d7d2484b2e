// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics_union.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

namespace shardwire::telemetry {

namespace {

namespace fs = std::filesystem;

using MaxAge = std::optional<std::chrono::duration<double>>;

struct WrittenFile {
  fs::path path;
  fs::file_time_type written;
};

// By member.
std::map<std::string, WrittenFile> newest_files(const std::string& folder, MaxAge max_age) {
  std::map<std::string, WrittenFile> files;
  constexpr std::string_view end = ".prom";
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("shardwire-") || !name.ends_with(end)) continue;
    std::error_code gone;
    const WrittenFile file{entry.path(), fs::last_write_time(entry.path(), gone)};
    if (gone || (max_age && fs::file_time_type::clock::now() - file.written > *max_age)) continue;
    const std::size_t number = name.rfind('-') + 1;
    const auto [other, first] = files.try_emplace(name.substr(number, name.size() - end.size() - number), file);
    if (!first && other->second.written < file.written) other->second = file;
  }
  return files;
}

// Prometheus wants all series of a family together, below one description.
class Union {
 public:
  void add(const fs::path& path) {
    std::ifstream file(path);
    std::map<std::string, Part> added;
    std::string name;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("# ")) name = third_word(line);
      (line.starts_with('#') ? added[name].description : added[name].series) += line + '\n';
    }
    for (auto& [family, of] : added) {
      Part& all = families_[family];
      if (all.description.empty()) all.description = std::move(of.description);
      all.series += of.series;
    }
  }
  [[nodiscard]] std::string text() const {
    std::string text;
    for (const auto& [name, of] : families_) text += of.description + of.series;
    return text;
  }

 private:
  struct Part {
    std::string description;
    std::string series;
  };

  // # HELP name ..
  static std::string third_word(const std::string& line) {
    const std::size_t begin = line.find(' ', 2) + 1;
    return line.substr(begin, line.find(' ', begin) - begin);
  }

  std::map<std::string, Part> families_;
};

}  // namespace

std::string metrics_union(const std::string& folder, MaxAge max_age) {
  Union all;
  for (const auto& [member, file] : newest_files(folder, max_age)) all.add(file.path);
  return all.text();
}

}  // namespace shardwire::telemetry
