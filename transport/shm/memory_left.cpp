// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/memory_left.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace shardwire::transport::shm {
namespace {

// File names and keywords of the two control group versions.
struct GroupVersion {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* droppable;  // in memory.stat
};
constexpr GroupVersion version_1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file"};
constexpr GroupVersion version_2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

std::optional<ByteCount> number_in(const std::string& path) {
  std::ifstream file(path);
  ByteCount value = 0;
  if (file >> value) return value;
  return std::nullopt;  // also "max"
}

std::optional<ByteCount> number_behind(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  for (std::string found; file >> found;) {
    ByteCount value = 0;
    if (found == word && file >> value) return value;
  }
  return std::nullopt;
}

bool names_memory(std::string_view controllers) {  // separated by commas
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "memory") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

void apply(MemoryLeft& left, const std::string& folder, const GroupVersion& version) {
  const auto limit = number_in(folder + "/" + version.limit);
  const auto usage = number_in(folder + "/" + version.usage);
  if (!limit || !usage) return;
  const ByteCount droppable = number_behind(folder + "/memory.stat", version.droppable).value_or(0);
  const ByteCount used = *usage - std::min(*usage, droppable);
  const ByteCount bytes = *limit - std::min(*limit, used);
  if (bytes < left.bytes) left = {bytes, "the memory limit of control group " + folder};
}

// The group and all its ancestors. In a container /proc may name a path that does not exist there: the mounted root is
// then the process's own group.
void apply_groups(MemoryLeft& left, const std::string& root, const std::string& path, const GroupVersion& version) {
  const std::filesystem::path mount = root + version.mount;
  std::error_code ignored;
  std::filesystem::path at = (mount / std::filesystem::path(path).relative_path()).lexically_normal();
  if (!std::filesystem::is_directory(at, ignored)) at = mount;
  for (; at.native().size() > mount.native().size(); at = at.parent_path()) apply(left, at.string(), version);
  apply(left, mount.string(), version);
}

}  // namespace

MemoryLeft memory_left(const std::string& root) {
  MemoryLeft left{std::numeric_limits<ByteCount>::max(), "no known limit"};
  if (const auto kibibytes = number_behind(root + "/proc/meminfo", "MemAvailable:")) {
    left = {*kibibytes * 1024, "the available memory of this host"};
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) apply_groups(left, root, path, version_2);
    if (names_memory(controllers)) apply_groups(left, root, path, version_1);
  }
  return left;
}

}  // namespace shardwire::transport::shm
