// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/command.hpp"
#include "cli/output.hpp"

namespace shardwire::cli {
namespace {

namespace fs = std::filesystem;

struct MetricsOptions {
  std::string folder;
  std::optional<double> max_age;
};

struct WrittenFile {
  fs::path path;
  fs::file_time_type written;
};

// By member: the newest file of each. Earlier runs of a job leave others.
std::map<std::string, WrittenFile> newest_files(const MetricsOptions& options) {
  std::map<std::string, WrittenFile> files;
  constexpr std::string_view end = ".prom";
  try {
    for (const auto& entry : fs::directory_iterator(options.folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("shardwire-") || !name.ends_with(end)) continue;
      std::error_code gone;
      const WrittenFile file{entry.path(), fs::last_write_time(entry.path(), gone)};
      const std::chrono::duration<double> age = fs::file_time_type::clock::now() - file.written;
      if (gone || (options.max_age && age.count() > *options.max_age)) continue;
      const std::size_t number = name.rfind('-') + 1;
      const auto [other, first] = files.try_emplace(name.substr(number, name.size() - end.size() - number), file);
      if (!first && other->second.written < file.written) other->second = file;
    }
  } catch (const fs::filesystem_error& error) {
    throw UsageError(options.folder + ": " + error.code().message());
  }
  return files;
}

// Of many files. Prometheus wants all series of a family together, below one description.
class Union {
 public:
  void add(const fs::path& path) {
    std::ifstream file(path);
    std::map<std::string, Family> added;
    std::string name;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("# ")) name = third_word(line);
      (line.starts_with('#') ? added[name].description : added[name].series) += line + '\n';
    }
    for (auto& [family, of] : added) {
      Family& all = families_[family];
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
  struct Family {
    std::string description;
    std::string series;
  };

  // # HELP name ..
  static std::string third_word(const std::string& line) {
    const std::size_t begin = line.find(' ', 2) + 1;
    return line.substr(begin, line.find(' ', begin) - begin);
  }

  std::map<std::string, Family> families_;
};

}  // namespace

std::function<int()> declare_metrics(CLI::App& app) {
  const auto options = std::make_shared<MetricsOptions>();  // owners: the parser and the run
  app.add_option("FOLDER", options->folder, "that SHARDWIRE_METRICS_FOLDER names for the members")->required();
  app.add_option("--max-age", options->max_age, "leave out files that were written more seconds ago");
  return [options] {
    if (options->max_age && !(*options->max_age >= 0)) throw UsageError("--max-age: seconds are expected, 0 or more");
    Union all;
    for (const auto& [member, file] : newest_files(*options)) all.add(file.path);
    write_output(all.text());
    return exit_done;
  };
}

}  // namespace shardwire::cli
