// SPDX-License-Identifier: Apache-2.0
#include "cli/drill_verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "geometry/overlap.hpp"

namespace shardwire::cli {
namespace {

using Boxes = std::map<TensorKey, std::vector<Box>>;

// Time beyond its deadline in which a restore has to end; generous, since many processes share the processor.
constexpr double slack_seconds = 10;

bool leaves_no_holder(FaultKind kind) {
  return is_fatal(kind) || kind == FaultKind::restep;
}

/// The faults that struck, as judge() asks for them.
class Struck {
 public:
  explicit Struck(const JobOutcome& outcome) {
    for (const FaultOutcome& one : outcome.faults) {
      if (one.struck_ns) faults_.push_back(&one.fault);
    }
  }
  [[nodiscard]] bool ended(int member) const { return has(member, FaultKind::kill) || has(member, FaultKind::stop); }
  [[nodiscard]] bool isolated(int member) const { return has(member, FaultKind::cut); }
  [[nodiscard]] std::vector<Rank> without() const {
    std::vector<Rank> ranks;
    for (const Fault* const one : faults_) {
      if (leaves_no_holder(one->kind)) ranks.push_back(one->rank);
    }
    std::ranges::sort(ranks);
    return ranks;
  }
  /// Sources that have delivered a spoilt box.
  [[nodiscard]] std::vector<int> spoilt() const {
    std::vector<int> ranks;
    for (const Fault* const one : faults_) {
      if (one->kind == FaultKind::corrupt) ranks.push_back(to_int(one->rank));
    }
    return ranks;
  }

 private:
  [[nodiscard]] bool has(int member, FaultKind kind) const {
    return std::ranges::any_of(faults_,
                               [&](const Fault* one) { return to_int(one->rank) == member && one->kind == kind; });
  }

  std::vector<const Fault*> faults_;
};

// Whether `part` lies within the union of disjoint boxes.
bool covers(const std::vector<Box>& boxes, const Box& part) {
  ElementCount covered = 0;
  for (const Box& one : boxes) {
    if (const auto common = intersect(one, part)) covered += common->volume();
  }
  return covered == part.volume();
}

bool names_source(const RunError& error, const std::vector<int>& ranks) {
  return std::ranges::any_of(
      ranks, [&](int rank) { return error.message.find(fmt::format("source rank {}", rank)) != std::string::npos; });
}

// Why an error is none that the faults explain; empty: they do.
std::string unexplained(const RunError& error, const Boxes& without_holder, const Struck& struck, bool digests) {
  const bool wrong = error.code == "wrong_element" || error.code == "wrong_value";
  if (wrong) return !digests && !struck.spoilt().empty() ? "" : "wrong bytes";
  if (error.code == "internal") return "an internal error";
  if (names_source(error, struck.spoilt())) return {};
  if (without_holder.empty()) return "refused, although each box has a source";
  for (const Gap& gap : error.gaps) {
    const auto gone = without_holder.find({gap.fqn, gap.state});
    if (gone == without_holder.end() || !covers(gone->second, gap.box)) {
      return fmt::format("wrong boxes: a source has {}/{} {}", gap.fqn, gap.state, to_string(gap.box));
    }
  }
  if (error.code == "peer_lost" && error.gaps.empty()) return "refused without the missing boxes";
  return {};
}

Boxes boxes_without_holder(Planner& planner, Rank target) {
  Boxes boxes;
  for (const Gap& gap : planner.plan(target).gaps) boxes[{gap.fqn, gap.state}].push_back(gap.box);
  return boxes;
}

}  // namespace

std::string_view to_string(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::completed: return "completed";
    case Verdict::Kind::refused: return "refused";
    case Verdict::Kind::bug: return "BUG";
  }
  return "unknown";
}

Verdict judge(const Case& job, const RunOptions& options, const JobOutcome& outcome) {
  const Struck struck(outcome);
  Planner planner(job.source.layout.without(struck.without()), job.target.layout);
  Verdict verdict{.has_holders = struck.spoilt().empty()};
  const auto found = [&](Verdict::Kind kind, const std::string& why) {
    if (kind > verdict.kind) verdict.why = why;
    verdict.kind = std::max(verdict.kind, kind);
  };
  for (const RunError& error : outcome.errors) {
    if (error.code != "process_died") found(Verdict::Kind::bug, error.message);
  }
  for (const MemberResult& one : outcome.results) {
    if (!one.target && !one.errors.empty()) found(Verdict::Kind::bug, one.errors.front().message);
  }
  for (int member = 0; member < members_of(job, options); ++member) {
    const MemberRole role = role_of(job, options, member);
    if (!role.target || struck.ended(member)) continue;
    const std::string who = fmt::format("target rank {}", to_int(*role.target));
    const auto result = std::ranges::find(outcome.results, member, &MemberResult::member);
    if (result == outcome.results.end()) {
      found(Verdict::Kind::bug, fmt::format("{} has no result", who));
      continue;
    }
    const double limit = std::chrono::duration<double>(options.timeout).count() + slack_seconds;
    if (!result->walls.empty() && result->walls.back() > limit) {
      found(Verdict::Kind::bug, fmt::format("{} took {:.1f} s, past its deadline", who, result->walls.back()));
    }
    // Member 0 tells who publishes.
    const bool unplanned = result->report.seconds.bind == 0 && (struck.ended(0) || struck.isolated(0));
    const Boxes without_holder = boxes_without_holder(planner, *role.target);
    const bool is_excused = struck.isolated(member) || (unplanned && !result->errors.empty());
    if (unplanned && !result->errors.empty()) verdict.has_holders = false;
    if (!is_excused) verdict.has_holders = verdict.has_holders && without_holder.empty();
    for (const RunError& error : result->errors) {
      const bool wrong = error.code == "wrong_element" || error.code == "wrong_value";
      const std::string why = is_excused && !wrong && error.code != "internal"
                                  ? ""
                                  : unexplained(error, without_holder, struck, options.verify == Verify::digest);
      if (!why.empty()) {
        found(Verdict::Kind::bug, fmt::format("{}: {}", why, error.message));
      } else if (!struck.isolated(member)) {
        found(Verdict::Kind::refused, error.message);
      }
    }
  }
  return verdict;
}

}  // namespace shardwire::cli
