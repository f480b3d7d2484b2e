// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.hpp"

namespace shardwire::cli {

/// The effect of a fault on the process of a source rank.
enum class FaultKind : std::uint8_t {
  kill,     ///< SIGKILL
  stop,     ///< SIGSTOP
  cut,      ///< its connections close, and it accepts no others
  corrupt,  ///< one bit of a box that it has delivered flips before its check
  slow,     ///< it sends at 1 % of its speed
  restep,   ///< it starts its next step
};
std::string_view to_string(FaultKind kind);
/// Every kind, in enum order.
std::span<const FaultKind> fault_kinds();
std::vector<std::string_view> names_of_kinds();
/// The process cannot finish its own work any more.
constexpr bool is_fatal(FaultKind kind) {
  return kind == FaultKind::kill || kind == FaultKind::stop || kind == FaultKind::cut;
}

/// Stages of a restore whose begin can be the moment of a fault.
std::span<const std::string_view> fault_stages();

/// One fault of a job, written kind:R@P.
struct Fault {
  FaultKind kind{};
  Rank rank{};          ///< of the source layout
  double percent = 0;   ///< of all remote payload of the job's restores has arrived; unused with a stage
  std::string stage{};  ///< or: the first target rank enters this stage; empty: the percentage counts
};
/// As it is written.
std::string to_string(const Fault& fault);

/// `text`: kind:R@P, where P is a percentage or one of fault_stages(). Errors: throws UsageError.
Fault parse_fault(const std::string& text);
/// Errors: throws UsageError that names a fault of a rank that the case does not have, or that is lost in it.
void require_ranks(std::span<const Fault> faults, const Case& job);

/// The result of a fault.
struct FaultOutcome {
  Fault fault;
  std::optional<std::int64_t> struck_ns{};  ///< on the clock of this host, std::chrono::steady_clock; empty: not struck
};

}  // namespace shardwire::cli
