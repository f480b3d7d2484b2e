// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "perf/measure/port_flags.hpp"
#include "shardwire/costs.hpp"

// Findings of `shardwire doctor` about this process and its host.
namespace shardwire::cli {

/// A transport of this build.
struct TransportFinding {
  std::string name;
  Reach reach{};
  bool viable = false;
  bool chosen = false;  ///< viable and selected
  std::string version;  ///< as opened; empty if not viable
  std::string detail;   ///< the probe's detail if viable, else the reason why not
};

/// `names`: "auto", or names separated by commas. Opens the viable ones briefly.
/// Errors: throws UsageError for an unknown name.
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

/// A fact that affects which features work, and its consequence.
struct Hint {
  std::string about;  ///< a word or two
  std::string says;
};
/// `root` is a prefix for /proc and /sys.
std::vector<Hint> find_hints(const std::string& root = {});

/// Under a title, or one line of JSON each.
void print_flags(const std::vector<perf::Flag>& flags, bool json, std::string_view title = "to be looked at");

/// "Linux 6.1.0 x86_64, 8 processors, <model>".
std::string describe_machine();

}  // namespace shardwire::cli
