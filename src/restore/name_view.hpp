// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "restore/context.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// What this member knows of the name that a restore reads from.
/// Threads: loop thread only.
class NameView {
 public:
  /// Ownership: borrows both.
  NameView(const Context& context, const Target& target) : context_(context), target_(target) {}

  /// Live publications, at any step, by layout rank; without those that were found withdrawn.
  [[nodiscard]] std::vector<wire::PublicationRecord> publications() const;
  /// Members that may still publish at `step`, or at any, one of `ranks` layout ranks; none if this member would not hear
  /// of it. 0 ranks: unknown.
  [[nodiscard]] std::vector<int> possible(int ranks, std::optional<std::int64_t> step) const;

 private:
  const Context& context_;
  const Target& target_;
};

}  // namespace shardwire::restore
