// SPDX-License-Identifier: Apache-2.0
#include "restore/verdict.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "restore/publishers.hpp"
#include "restore/values.hpp"
#include "support/list_of.hpp"

namespace shardwire::restore {

namespace {

constexpr std::size_t max_named = 8;

std::string readable(ByteCount bytes) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(units)) value /= 1000, ++unit;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, units[unit]);
}

std::string source_ranks_text(const std::vector<int>& ranks) {
  return fmt::format("source rank{} {}", ranks.size() == 1 ? "" : "s", support::runs_of(ranks));
}

std::string members_text(const std::vector<int>& members, const char* one, const char* several) {
  if (members.size() == 1) return fmt::format("member {} {}", members.front(), one);
  return fmt::format("members {} {}", support::runs_of(members), several);
}

std::vector<Rank> ranks_from(const std::vector<int>& numbers) {
  std::vector<Rank> ranks;
  for (const int number : numbers) ranks.push_back(Rank{number});
  return ranks;
}

std::map<std::int64_t, std::vector<int>> by_step(const std::vector<wire::PublicationRecord>& records) {
  std::map<std::int64_t, std::vector<int>> steps;
  for (const auto& record : records) steps[record.step].push_back(record.layout_rank);
  return steps;
}

Error step_not_published(const Situation& situation) {
  std::vector<std::string> text;
  std::vector<int> named;
  for (const auto& [step, ranks] : by_step(situation.published)) {
    if (step == *situation.step) continue;
    text.push_back(fmt::format("at step {} by {}", step, source_ranks_text(ranks)));
    named.insert(named.end(), ranks.begin(), ranks.end());
  }
  return {ErrorCode::step_mismatch,
          fmt::format("'{}' is published {}, step {} was asked for", situation.from, fmt::join(text, ", "),
                      *situation.step),
          situation.gaps, ranks_from(named)};
}

// A source has withdrawn, and there is no replacement.
bool is_not_replaced(const Situation& situation, const std::vector<wire::PublicationRecord>& sources) {
  return situation.withdrawn && std::ranges::none_of(sources, [&](const auto& record) {
           return record.layout_rank == to_int(situation.withdrawn->ranks().front());
         });
}

}  // namespace

std::vector<wire::PublicationRecord> Situation::sources() const {
  std::vector<wire::PublicationRecord> records = published;
  if (step) std::erase_if(records, [&](const auto& record) { return record.step != *step; });
  return records;
}

Error nobody_publishes(const Situation& situation) {
  if (situation.step && !situation.published.empty()) return step_not_published(situation);
  std::vector<int> left;
  std::vector<int> lost;
  for (const auto& [member, presence] : situation.departed) {
    (presence == wire::Presence::left ? left : lost).push_back(member);
  }
  std::vector<std::string> text;
  if (!left.empty()) text.push_back(fmt::format("{} left", members_text(left, "has", "have")));
  if (!lost.empty()) text.push_back(fmt::format("{} lost", members_text(lost, "is", "are")));
  left.insert(left.end(), lost.begin(), lost.end());
  return {
      situation.withdrawn ? ErrorCode::withdrawn : ErrorCode::peer_lost,
      fmt::format("no member publishes '{}', and none is left that could: {}", situation.from, fmt::join(text, ", ")),
      ranks_from(left)};
}

Error steps_differ(const Situation& situation) {
  const auto steps = by_step(situation.sources());
  std::vector<std::string> text;
  std::vector<int> behind;
  for (const auto& [step, ranks] : steps) {
    text.push_back(fmt::format("step {} by {}", step, source_ranks_text(ranks)));
    if (step != steps.rbegin()->first) behind.insert(behind.end(), ranks.begin(), ranks.end());
  }
  return {ErrorCode::step_mismatch,
          fmt::format("the sources of '{}' are not at one step: {}", situation.from, fmt::join(text, ", ")),
          ranks_from(behind)};
}

Error incomplete(const Situation& situation) {
  const auto sources = situation.sources();
  if (situation.step && situation.published.size() > sources.size()) return step_not_published(situation);
  const std::vector<int> open = open_ranks(sources, {.ranks = situation.source_ranks});
  try {
    require_complete(situation.gaps, situation.absent);
  } catch (const Error& error) {
    if (open.empty()) return error;
    if (is_not_replaced(situation, sources)) {
      return {ErrorCode::withdrawn, fmt::format("{}, and it was not published again", situation.withdrawn->what()),
              error.gaps(), situation.withdrawn->ranks()};
    }
    const std::optional<Error>& lost = situation.rendezvous_lost;
    return {lost ? lost->code() : error.code(),
            fmt::format("{}; {} of {} {} not published '{}'{}", error.what(), source_ranks_text(open),
                        situation.source_ranks, open.size() == 1 ? "has" : "have", situation.from,
                        lost ? fmt::format(", and {}", lost->what()) : ""),
            error.gaps(), ranks_from(open)};
  }
  return {ErrorCode::internal, "a complete plan was taken for an incomplete one"};
}

Error late_in_plan(const Situation& situation) {
  const auto sources = situation.sources();
  if (sources.empty() && !situation.published.empty()) return step_not_published(situation);
  if (is_not_replaced(situation, sources)) {
    return {ErrorCode::withdrawn,
            fmt::format("{}, and it was not published again before the deadline", situation.withdrawn->what()),
            situation.withdrawn->ranks()};
  }
  if (sources.empty()) {
    std::vector<int> others = situation.possible;
    if (others.size() > 1) std::erase(others, situation.member);
    return {ErrorCode::timed_out,
            fmt::format("no member published '{}' before the deadline; {} done so", situation.from,
                        members_text(others, "could have", "could have")),
            ranks_from(others)};
  }
  if (!situation.undescribed.empty()) {
    return {ErrorCode::timed_out,
            fmt::format("the deadline passed while {} had not yet described '{}'",
                        source_ranks_text(situation.undescribed), situation.from),
            ranks_from(situation.undescribed)};
  }
  const std::vector<int> open = open_ranks(sources, {.ranks = situation.source_ranks});
  if (!open.empty()) {
    return {ErrorCode::timed_out,
            fmt::format("the deadline passed: {} of {} {} not published '{}'", source_ranks_text(open),
                        situation.source_ranks, open.size() == 1 ? "has" : "have", situation.from),
            ranks_from(open)};
  }
  return {ErrorCode::timed_out, "the deadline passed while this rank was planning",
          std::vector<Rank>{situation.target}};
}

Error late_source(std::span<const SourceProgress> sources) {
  std::vector<const SourceProgress*> late;
  for (const SourceProgress& one : sources) {
    if (one.unanswered || one.outstanding_bytes > 0) late.push_back(&one);
  }
  const auto keeps_up = [](const SourceProgress* one) { return one->keeps_up && !one->unanswered; };
  if (!std::ranges::all_of(late, keeps_up)) std::erase_if(late, keeps_up);

  std::vector<std::string> text;
  std::vector<Rank> ranks;
  for (const SourceProgress* one : late) {
    ranks.push_back(one->rank);
    if (text.size() == max_named) continue;
    text.push_back(fmt::format("{} from source rank {}{}",
                               one->outstanding_bytes > 0 ? readable(one->outstanding_bytes) : "an answer",
                               to_int(one->rank), one->address.empty() ? "" : fmt::format(" ({})", one->address)));
  }
  if (ranks.size() > text.size()) text.push_back(fmt::format("{} more", ranks.size() - text.size()));
  return {ErrorCode::timed_out,
          text.empty() ? "the deadline passed: all bytes have come, and this rank was not done with them"
                       : fmt::format("the deadline passed: waiting for {}", fmt::join(text, ", ")),
          ranks};
}

std::exception_ptr with_gaps(const std::exception_ptr& error, const std::vector<Gap>& missing) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    if (!reason.gaps().empty()) return error;
    return std::make_exception_ptr(Error(reason.code(), reason.what(), missing, reason.ranks()));
  } catch (const std::exception& reason) {
    return std::make_exception_ptr(Error(ErrorCode::internal, reason.what(), missing));
  }
}

}  // namespace shardwire::restore
