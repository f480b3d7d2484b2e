// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "perf/measure/facts.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// Input and output of the MPI program, as files of one folder: its order, and its results.
struct MpiFolder {
  std::string path;

  [[nodiscard]] std::string barrier() const { return path + "/barrier"; }
  [[nodiscard]] std::string order() const { return path + "/order.json"; }
  [[nodiscard]] std::string facts() const { return path + "/facts.json"; }
};

/// Errors: throws std::runtime_error.
void write_order(const MpiFolder& folder, const Setup& setup);
/// Only the part for the MPI program. Errors: throws.
Setup read_order(const MpiFolder& folder);

struct MpiFacts {
  std::string version;    ///< of the library
  std::string transport;  ///< how it moves bytes, set or by default: the single-copy mechanism by name
  std::vector<MemberFacts> members;
};
void write_facts(const MpiFolder& folder, const MpiFacts& facts);
MpiFacts read_facts(const MpiFolder& folder);

}  // namespace shardwire::perf
