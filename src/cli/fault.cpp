// SPDX-License-Identifier: Apache-2.0
#include "cli/fault.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "cli/command.hpp"
#include "support/nearest.hpp"

namespace shardwire::cli {
namespace {

constexpr FaultKind kinds[] = {FaultKind::kill,    FaultKind::stop, FaultKind::cut,
                               FaultKind::corrupt, FaultKind::slow, FaultKind::restep};
constexpr std::string_view stages[] = {"plan", "bind", "move", "verify"};

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string_view to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill: return "kill";
    case FaultKind::stop: return "stop";
    case FaultKind::cut: return "cut";
    case FaultKind::corrupt: return "corrupt";
    case FaultKind::slow: return "slow";
    case FaultKind::restep: return "restep";
  }
  return "unknown";
}

std::span<const FaultKind> fault_kinds() {
  return kinds;
}

std::vector<std::string_view> names_of_kinds() {
  std::vector<std::string_view> names;
  std::ranges::transform(kinds, std::back_inserter(names), [](FaultKind kind) { return to_string(kind); });
  return names;
}

std::span<const std::string_view> fault_stages() {
  return stages;
}

std::string to_string(const Fault& fault) {
  return fmt::format("{}:{}@{}", to_string(fault.kind), to_int(fault.rank),
                     fault.stage.empty() ? fmt::format("{}", fault.percent) : fault.stage);
}

Fault parse_fault(const std::string& text) {
  const auto refuse = [&](const std::string& why) { throw UsageError(fmt::format("--fault {}: {}", text, why)); };
  const std::size_t colon = text.find(':');
  const std::size_t at = text.find('@', colon == std::string::npos ? 0 : colon);
  if (colon == std::string::npos || at == std::string::npos) refuse("kind:R@P is expected, such as kill:3@50");
  const std::string_view all = text;
  const std::string_view kind_text = all.substr(0, colon);
  const std::string_view rank_text = all.substr(colon + 1, at - colon - 1);
  const std::string_view moment = all.substr(at + 1);

  Fault fault;
  const auto kind = std::ranges::find(kinds, kind_text, [](FaultKind one) { return to_string(one); });
  if (kind == std::end(kinds)) {
    const std::vector<std::string_view> known = names_of_kinds();
    refuse(fmt::format("'{}' is not one of {}{}", kind_text, fmt::join(known, ", "),
                       support::suggestion(kind_text, known)));
  }
  fault.kind = *kind;
  const auto rank = number<std::int32_t>(rank_text);
  if (!rank) refuse(fmt::format("'{}' is not a source rank", rank_text));
  fault.rank = Rank{*rank};
  if (std::ranges::find(stages, moment) != std::end(stages)) {
    fault.stage = moment;
    return fault;
  }
  const auto percent = number<double>(moment);
  if (!percent || !(*percent >= 0 && *percent <= 100)) {
    refuse(fmt::format("'{}' is neither a percentage from 0 to 100 nor one of {}{}", moment, fmt::join(stages, ", "),
                       support::suggestion(moment, stages)));
  }
  fault.percent = *percent;
  return fault;
}

void require_ranks(std::span<const Fault> faults, const Case& job) {
  for (const Fault& fault : faults) {
    const int rank = to_int(fault.rank);
    if (rank < 0 || rank >= job.source.ranks) {
      throw UsageError(fmt::format("--fault {}: source rank {} is out of range 0..{}", to_string(fault), rank,
                                   job.source.ranks - 1));
    }
    if (job.source.is_lost(fault.rank)) {
      throw UsageError(
          fmt::format("--fault {}: source rank {} is lost in this case, and holds nothing", to_string(fault), rank));
    }
  }
}

}  // namespace shardwire::cli
