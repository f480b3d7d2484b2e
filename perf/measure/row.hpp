// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardwire::perf {

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};
/// Requires: at least one value.
Spread spread_of(std::vector<double> values);

/// Processor, cores, memory.
std::string machine();
/// Compiler and C library.
nlohmann::ordered_json versions();
/// For a row: the device, and the read and write speed of its memory, relative to `peak_per_second` if that is known.
nlohmann::ordered_json device_json(const std::string& name, double touched_per_second, double peak_per_second);
/// `given`, or the commit that this program was built from.
std::string commit(const std::string& given);

}  // namespace shardwire::perf
