// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "perf/measure/facts.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// What the MPI program has to know, in files of one folder: what to do before, what it found out after.
struct MpiFolder {
  std::string path;

  [[nodiscard]] std::string barrier() const { return path + "/barrier"; }
  [[nodiscard]] std::string order() const { return path + "/order.json"; }
  [[nodiscard]] std::string facts() const { return path + "/facts.json"; }
};

/// Errors: throws std::runtime_error.
void write_order(const MpiFolder& folder, const Setup& setup);
/// Only what concerns the MPI program. Errors: throws.
Setup read_order(const MpiFolder& folder);

struct MpiFacts {
  std::string version;    ///< of the library
  std::string transport;  ///< how it was told, and left, to move bytes: the single-copy mechanism by name
  std::vector<MemberFacts> members;
};
void write_facts(const MpiFolder& folder, const MpiFacts& facts);
MpiFacts read_facts(const MpiFolder& folder);

}  // namespace shardwire::perf
