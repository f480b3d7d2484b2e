// SPDX-License-Identifier: Apache-2.0
#include "restore/verdict.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "restore/publishers.hpp"
#include "restore/values.hpp"
#include "support/human.hpp"
#include "support/list_of.hpp"
#include "support/ranks_of.hpp"

namespace shardwire::restore {

namespace {

constexpr std::size_t max_named = 8;

std::string source_ranks_text(const std::vector<int>& ranks) {
  return fmt::format("source rank{} {}", ranks.size() == 1 ? "" : "s", support::runs_of(ranks));
}

std::string members_text(const std::vector<int>& members, const char* one, const char* several) {
  if (members.size() == 1) return fmt::format("member {} {}", members.front(), one);
  return fmt::format("members {} {}", support::runs_of(members), several);
}

// Ascending. Several members may publish one layout rank.
std::map<std::int64_t, std::vector<int>> by_step(std::span<const wire::PublicationRecord> records) {
  std::map<std::int64_t, std::vector<int>> steps;
  for (const auto& record : records) {
    std::vector<int>& ranks = steps[record.step];
    if (ranks.empty() || ranks.back() != record.layout_rank) ranks.push_back(record.layout_rank);
  }
  return steps;
}

Error step_not_published(const Situation& situation) {
  std::vector<wire::PublicationRecord> others = situation.published;
  std::erase_if(others, [&](const auto& record) { return record.step == *situation.step; });
  std::set<int> named;
  for (const auto& record : others) named.insert(record.layout_rank);
  return {
      ErrorCode::step_mismatch,
      fmt::format("'{}' is published {}, and step {} is wanted", situation.from, steps_text(others), *situation.step),
      situation.gaps, support::ranks_of(named)};
}

// A source has withdrawn, and there is no replacement.
bool is_not_replaced(const Situation& situation, const std::vector<wire::PublicationRecord>& sources) {
  return situation.withdrawn && std::ranges::none_of(sources, [&](const auto& record) {
           return record.layout_rank == to_int(situation.withdrawn->ranks().front());
         });
}

// Names the members that have left, then those that are lost, and lists both.
std::pair<std::string, std::vector<int>> departed_members(const Situation& situation) {
  std::vector<int> left;
  std::vector<int> lost;
  for (const auto& [member, presence] : situation.departed) {
    (presence == wire::Presence::left ? left : lost).push_back(member);
  }
  std::vector<std::string> text;
  if (!left.empty()) text.push_back(fmt::format("{} left", members_text(left, "has", "have")));
  if (!lost.empty()) text.push_back(fmt::format("{} lost", members_text(lost, "is", "are")));
  left.insert(left.end(), lost.begin(), lost.end());
  return {fmt::format("{}", fmt::join(text, ", ")), left};
}

// Some of the plan has no holder, and source ranks have not published: the code, and its reason.
std::pair<ErrorCode, std::string> fate_of_unpublished(const Situation& situation) {
  if (const auto& lost = situation.rendezvous_lost) return {lost->code(), fmt::format(", and {}", lost->what())};
  if (situation.at_deadline) return {ErrorCode::timed_out, " before the deadline"};
  if (situation.departed.empty()) return {ErrorCode::layout_mismatch, ""};
  return {ErrorCode::peer_lost, ": " + departed_members(situation).first};
}

// Sources that owe something, and what. Sources that keep up are named only if all do.
struct Owed {
  std::string text;
  std::vector<Rank> ranks;
};

Owed owed_by(std::span<const SourceProgress> sources) {
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
                               one->outstanding_bytes > 0 ? support::human_bytes(one->outstanding_bytes) : "an answer",
                               to_int(one->rank), one->address.empty() ? "" : fmt::format(" ({})", one->address)));
  }
  if (ranks.size() > text.size()) text.push_back(fmt::format("{} more", ranks.size() - text.size()));
  return {fmt::format("{}", fmt::join(text, ", ")), std::move(ranks)};
}

// Members that could have published when the last one did.
std::vector<int> possible_others(const Situation& situation) {
  std::vector<int> others = situation.possible;
  if (others.size() > 1) std::erase(others, situation.member);
  return others;
}

}  // namespace

std::string source_ranks_text(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank rank : ranks) numbers.push_back(to_int(rank));
  return source_ranks_text(numbers);
}

std::string steps_text(std::span<const wire::PublicationRecord> records) {
  std::vector<std::string> text;
  for (const auto& [step, ranks] : by_step(records)) {
    text.push_back(fmt::format("at step {} by {}", step, source_ranks_text(ranks)));
  }
  return fmt::format("{}", fmt::join(text, ", "));
}

std::vector<wire::PublicationRecord> Situation::sources() const {
  std::vector<wire::PublicationRecord> records = published;
  if (step) std::erase_if(records, [&](const auto& record) { return record.step != *step; });
  return records;
}

Error nobody_publishes(const Situation& situation) {
  if (situation.step && !situation.published.empty()) return step_not_published(situation);
  const auto [text, departed] = departed_members(situation);
  return {situation.withdrawn ? ErrorCode::withdrawn : ErrorCode::peer_lost,
          fmt::format("no member publishes '{}', and none is left that could: {}", situation.from, text),
          support::ranks_of(departed)};
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
          support::ranks_of(behind)};
}

Error incomplete(const Situation& situation) {
  const auto sources = situation.sources();
  if (situation.step && situation.published.size() > sources.size()) return step_not_published(situation);
  const std::vector<int> open = open_ranks(sources, {.ranks = situation.source_ranks});
  try {
    require_complete(situation.gaps, situation.absent);
  } catch (const Error& error) {
    if (open.empty()) return situation.at_deadline ? late_in_plan(situation) : error;
    if (is_not_replaced(situation, sources)) {
      return {ErrorCode::withdrawn, fmt::format("{}, and it was not published again", situation.withdrawn->what()),
              error.gaps(), situation.withdrawn->ranks()};
    }
    const auto [code, why] = fate_of_unpublished(situation);
    return {code,
            fmt::format("{}; {} of {} {} not published '{}'{}", error.what(), source_ranks_text(open),
                        situation.source_ranks, open.size() == 1 ? "has" : "have", situation.from, why),
            error.gaps(), support::ranks_of(open)};
  }
  return {ErrorCode::internal, "a complete plan was taken for an incomplete one: please report this"};
}

Error no_step_complete(const Situation& situation, std::span<const IncompleteStep> steps) {
  Situation newest = situation;
  newest.gaps = steps.front().gaps;
  newest.absent.clear();  // of the step that was planned last
  std::erase_if(newest.published, [&](const auto& record) { return record.step != steps.front().step; });
  if (newest.gaps.empty()) return late_in_plan(situation);
  const Error error = incomplete(newest);
  std::string text = fmt::format("step {}: {}", steps.front().step, error.what());
  for (const IncompleteStep& one : steps.subspan(1)) {
    if (one.gaps.empty()) continue;  // said in the log
    text += fmt::format("; step {}: {} box{} without a holder", one.step, one.gaps.size(),
                        one.gaps.size() == 1 ? "" : "es");
  }
  return {error.code(), "no step is complete: " + text, error.gaps(), error.ranks()};
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
    const std::vector<int> others = possible_others(situation);
    const std::string gone = departed_members(situation).first;
    return {ErrorCode::timed_out,
            fmt::format("the deadline passed: no member publishes '{}'{}{}; {} done so", situation.from,
                        gone.empty() ? "" : ", ", gone, members_text(others, "could have", "could have")),
            support::ranks_of(others)};
  }
  if (!situation.undescribed.empty()) {
    return {ErrorCode::timed_out,
            fmt::format("the deadline passed while {} had not yet described '{}'",
                        source_ranks_text(situation.undescribed), situation.from),
            support::ranks_of(situation.undescribed)};
  }
  const std::vector<int> open = open_ranks(sources, {.ranks = situation.source_ranks});
  if (!open.empty()) {
    return {ErrorCode::timed_out,
            fmt::format("the deadline passed: {} of {} {} not published '{}'", source_ranks_text(open),
                        situation.source_ranks, open.size() == 1 ? "has" : "have", situation.from),
            support::ranks_of(open)};
  }
  return {ErrorCode::timed_out, "the deadline passed while this rank was planning",
          std::vector<Rank>{situation.target}};
}

Error late_source(std::span<const SourceProgress> sources) {
  Owed owed = owed_by(sources);
  return {ErrorCode::timed_out,
          owed.ranks.empty() ? "the deadline passed: all bytes had arrived, and this rank had not finished with them"
                             : "the deadline passed: waiting for " + owed.text,
          std::move(owed.ranks)};
}

std::string awaited_text(const Situation& situation) {
  const auto sources = situation.sources();
  if (sources.empty()) {
    const std::vector<int> others = possible_others(situation);
    if (others.empty()) return "";
    const std::string gone = departed_members(situation).first;  // they may have published
    return fmt::format("{}member{} {} to publish {}'{}'{}", others.size() == 1 ? "" : "one of ",
                       others.size() == 1 ? "" : "s", support::runs_of(others),
                       situation.step ? fmt::format("step {} of ", *situation.step) : "", situation.from,
                       gone.empty() ? "" : fmt::format(" ({})", gone));
  }
  if (!situation.undescribed.empty()) {
    return fmt::format("{} to describe '{}'", source_ranks_text(situation.undescribed), situation.from);
  }
  const std::vector<int> open = open_ranks(sources, {.ranks = situation.source_ranks});
  if (!open.empty()) {
    return fmt::format("{} of {} to publish '{}'", source_ranks_text(open), situation.source_ranks, situation.from);
  }
  std::set<int> behind;
  for (const auto& record : sources) behind.insert(record.layout_rank);
  const auto steps = by_step(sources);
  for (const int rank : steps.rbegin()->second) behind.erase(rank);
  if (behind.empty()) return "";
  return fmt::format("{} to publish step {} of '{}'", source_ranks_text(std::vector<int>(behind.begin(), behind.end())),
                     steps.rbegin()->first, situation.from);
}

std::string publishers_of(const std::string& from) {
  return fmt::format("member 0 to list the publishers of '{}'", from);
}

std::string awaited_text(std::span<const SourceProgress> sources) {
  return owed_by(sources).text;
}

Error corrupt_everywhere(const std::vector<Gap>& gaps, const Planning& planning, const CorruptHolders& corrupt) {
  std::set<int> ranks;
  for (const auto& [tensor, holders] : corrupt) {
    const TensorKey& key = planning.plan.wanted->tensors[to_index(tensor)].spec.key;
    const bool missing =
        std::ranges::any_of(gaps, [&](const Gap& gap) { return gap.fqn == key.fqn && gap.state == key.state; });
    for (const Rank holder : holders) {
      if (missing) ranks.insert(to_int(planning.from.rank_of(holder)));
    }
  }
  const std::vector<int> named(ranks.begin(), ranks.end());
  const Gap& first = gaps.front();
  return {
      ErrorCode::corrupt,
      fmt::format("{} boxes are not what was published, the first is {}:{} {}; read twice from {}, and no other rank "
                  "holds them",
                  gaps.size(), first.fqn, first.state, to_string(first.box), source_ranks_text(named)),
      gaps, support::ranks_of(named)};
}

ErrorCode code_in(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    return reason.code();
  } catch (...) {
    return ErrorCode::internal;
  }
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

std::exception_ptr with_last_gaps(const std::exception_ptr& error, const Plan& plan, std::span<const PieceBox> missing,
                                  std::span<const Rank> lost) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    if (reason.code() != ErrorCode::peer_lost) return error;
    const std::vector<Gap> gaps = without_holder(plan, missing, lost);
    if (gaps.empty()) return error;
    return std::make_exception_ptr(Error(reason.code(), reason.what(), gaps, reason.ranks()));
  } catch (...) {  // of the caller's
    return error;
  }
}

std::exception_ptr with_missing_bytes(const std::exception_ptr& error, const Manifest& wanted, bool resumable) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    const std::vector<Gap>& gaps = reason.gaps();
    if (reason.code() != ErrorCode::peer_lost || gaps.empty()) return error;
    std::map<TensorKey, ByteCount> item_bytes;
    for (const TensorLayout& tensor : wanted.tensors) {
      item_bytes.emplace(tensor.spec.key, item_size(tensor.spec.dtype));
    }
    ByteCount bytes = 0;
    for (const Gap& gap : gaps) {
      const auto found = item_bytes.find({gap.fqn, gap.state});
      if (found == item_bytes.end()) return error;  // of another member of an exchange
      bytes += move::bytes_of_box(gap.box, found->second);
    }
    const bool one = gaps.size() == 1;
    const std::string text = fmt::format("{}; {} box{} ({}) {} missing{}", reason.what(), gaps.size(), one ? "" : "es",
                                         support::human_bytes(bytes), one ? "is" : "are",
                                         resumable ? ", and resume() waits for another holder" : "");
    return std::make_exception_ptr(Error(reason.code(), text, gaps, reason.ranks()));
  } catch (...) {  // of the caller's
    return error;
  }
}

}  // namespace shardwire::restore
