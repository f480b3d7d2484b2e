// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/memory_use.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace shardwire::perf {

MemoryWatch::MemoryWatch() {
  look();
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

MemoryWatch::~MemoryWatch() = default;

void MemoryWatch::look() {
  std::ifstream status("/proc/self/status");
  for (std::string name, rest; status >> name && std::getline(status, rest);) {
    const bool anonymous = name == "RssAnon:";
    if (!anonymous && name != "RssShmem:") continue;
    std::atomic<ByteCount>& most = anonymous ? anonymous_ : shared_;
    most = std::max<ByteCount>(most, std::stoull(rest) * 1024);
  }
}

bool lies_in_shared_mapping(const void* data) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(data);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0;
    unsigned long end = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &first, &end, access) != 3) continue;
    if (wanted >= first && wanted < end) return access[3] == 's';
  }
  return false;
}

}  // namespace shardwire::perf
