// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "perf/measure/port_flags.hpp"
#include "shardwire/costs.hpp"

// What `shardwire doctor` finds out about this process and its host.
namespace shardwire::cli {

/// A transport of this build.
struct TransportFinding {
  std::string name;
  Reach reach{};
  bool viable = false;
  bool chosen = false;  ///< viable, and among those that were asked for
  std::string version;  ///< as opened; empty where it is not viable
  std::string detail;   ///< of a viable one what its probe says, else why not
};

/// `names`: "auto", or names separated by commas. Opens those that are viable, for a moment.
/// Errors: throws UsageError for a name that there is not.
std::vector<TransportFinding> find_transports(std::string_view names);

/// A collective of this build.
struct CollectiveFinding {
  std::string name;
  std::string moves;  ///< "device" or "host" memory
  bool viable = false;
  std::string detail;  ///< its version, or why not
};
std::vector<CollectiveFinding> find_collectives();

struct InterfaceFinding {
  std::string name;
  bool up = false;
  std::vector<std::string> addresses;  ///< numeric
  int megabits_per_second = 0;         ///< 0: not known
};
std::vector<InterfaceFinding> find_interfaces();

/// Something that decides what works, and what it means.
struct Hint {
  std::string about;  ///< a word or two
  std::string says;
};
/// `root` is put before /proc and /sys.
std::vector<Hint> find_hints(const std::string& root = {});

/// Under a title, or a line of JSON each.
void print_flags(const std::vector<perf::Flag>& flags, bool json);

/// "Linux 6.1.0 x86_64, 8 processors, <model>".
std::string describe_machine();

}  // namespace shardwire::cli
