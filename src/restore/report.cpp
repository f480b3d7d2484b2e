// SPDX-License-Identifier: Apache-2.0
#include "restore/report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "move/traits.hpp"
#include "support/human.hpp"

namespace shardwire {

MethodTable& MethodTable::operator+=(const MethodTable& next) {
  each([&](Method method, MethodReport& row) {
    const MethodReport& more = next[method];
    row.bytes += more.bytes;
    row.runs += more.runs;
    row.predicted_seconds += more.predicted_seconds;
    row.measured_seconds += more.measured_seconds;
  });
  return *this;
}

StageSeconds& StageSeconds::operator+=(const StageSeconds& next) {
  for (auto stage : {&StageSeconds::wall, &StageSeconds::join, &StageSeconds::plan, &StageSeconds::bind,
                     &StageSeconds::move, &StageSeconds::verify, &StageSeconds::commit}) {
    this->*stage += next.*stage;
  }
  return *this;
}

RestoreReport& RestoreReport::operator+=(const RestoreReport& next) {
  for (auto bytes : {&RestoreReport::needed_bytes, &RestoreReport::moved_bytes, &RestoreReport::local_bytes,
                     &RestoreReport::overread_bytes, &RestoreReport::resent_bytes}) {
    this->*bytes += next.*bytes;
  }
  methods += next.methods;
  seconds += next.seconds;
  digest_seconds += next.digest_seconds;
  rounds += next.rounds;
  rounds_bytes += next.rounds_bytes;
  rounds_seconds += next.rounds_seconds;
  staging_budget_bytes = next.staging_budget_bytes;
  staging_peak_bytes = std::max(staging_peak_bytes, next.staging_peak_bytes);
  registered_bytes = next.registered_bytes;
  registration_seconds = next.registration_seconds;
  transport = next.transport;
  if (next.step) {
    step = next.step;
    incomplete_steps = next.incomplete_steps;
  }
  for (const PeerReport& peer : next.peers) {
    const auto at = std::lower_bound(peers.begin(), peers.end(), peer, [](const auto& a, const auto& b) {
      return std::tie(a.rank, a.path) < std::tie(b.rank, b.path);
    });
    if (at != peers.end() && at->rank == peer.rank && at->path == peer.path) {
      at->bytes += peer.bytes;
      at->predicted_seconds += peer.predicted_seconds;
      at->measured_seconds += peer.measured_seconds;
    } else {
      peers.insert(at, peer);
    }
  }
  lost.insert(lost.end(), next.lost.begin(), next.lost.end());
  corrupt.insert(corrupt.end(), next.corrupt.begin(), next.corrupt.end());
  for (auto keys : {&RestoreReport::skipped, &RestoreReport::zeroed}) {
    for (const TensorKey& key : next.*keys) {
      if (std::find((this->*keys).begin(), (this->*keys).end(), key) == (this->*keys).end()) {
        (this->*keys).push_back(key);
      }
    }
  }
  return *this;
}

}  // namespace shardwire

namespace shardwire::restore {

namespace {

const move::Prediction& expected_from(const ReportInput& input, std::size_t source, Method method) {
  static const move::Prediction nothing{};
  const auto& by_source = input.predictions.peers;
  return source < by_source.size() ? by_source[source][static_cast<std::size_t>(method)] : nothing;
}

void add_methods(RestoreReport& report, const ReportInput& input) {
  report.methods.each([&](Method method, MethodReport& row) {
    const auto index = static_cast<std::size_t>(method);
    const move::Prediction& predicted = input.predictions.methods[index];
    row = {0, predicted.runs, predicted.seconds, 0};
    if (!input.moved) {
      for (std::size_t i = 0; i < input.bindings.size(); ++i) row.bytes += expected_from(input, i, method).bytes;
      return;
    }
    row.bytes = input.moved->tally.method_bytes(method) + input.abandoned_bytes[index];
    row.measured_seconds = input.moved->tally.method_seconds(method);
  });
}

// Reasons why a source's memory is not mapped, with the consequence.
support::Fallback why_not_mapped(const ReportInput& input, std::size_t source) {
  support::Fallback why = in_one(input.bindings[source]->path.rejected);
  const auto& unmapped = input.predictions.unmapped_seconds;
  const double seconds = source < unmapped.size() ? unmapped[source] : 0;
  if (!why.empty() && seconds > 0) {
    why.detail += fmt::format(" (an estimated {:.3g} s more than with mapped memory)", seconds);
  }
  return why;
}

std::optional<PeerReport> row_of(const ReportInput& input, std::size_t source, Method method) {
  const Binding& binding = *input.bindings[source];
  const move::Prediction& expected = expected_from(input, source, method);
  const auto number = static_cast<std::uint32_t>(source);
  const ByteCount bytes = input.moved ? input.moved->tally.peer_bytes(number, method) : expected.bytes;
  if (bytes == 0) return std::nullopt;
  PeerReport row{.rank = binding.layout_rank,
                 .bytes = bytes,
                 .path = "local",
                 .device = "this process",
                 .predicted_seconds = expected.seconds,
                 .measured_seconds = input.moved ? input.moved->tally.peer_seconds(number, method) : 0};
  const auto because = [&row](support::Fallback why) {
    row.fallback_reason = why.reason;
    row.fallback_detail = std::move(why.detail);
  };
  const move::Carrier carrier = move::carrier_of(method);
  if (carrier == move::Carrier::rounds) {
    row.path = fmt::format("{}/{}", input.rounds->collective, to_string(method));
    row.device = "rounds of all members";
    return row;
  }
  if (carrier == move::Carrier::process) {
    if (const auto staged = input.staged_local.find(number); staged != input.staged_local.end()) {
      because({FallbackReason::no_peer_access, staged->second});
    }
    return row;
  }
  const ConnectedFabric* by = binding.carrier_of(method);
  if (by == nullptr) return std::nullopt;
  row.path = fmt::format("{}/{}", input.fabrics.name(by->fabric), to_string(method));
  const bool mapped = carrier == move::Carrier::mapping;
  row.device = mapped ? binding.mapped_by() : by->path.carrier;
  if (!mapped) because(why_not_mapped(input, source));
  return row;
}

}  // namespace

RestoreReport make_report(const ReportInput& input, std::vector<MovedRow> rows) {
  RestoreReport report;
  report.seconds = input.seconds;
  for (const std::string& version : input.session.transports) {
    report.transport += (report.transport.empty() ? "" : ", ") + version;
  }
  report.registered_bytes = input.session.registered_bytes;
  report.registration_seconds = input.session.registration_seconds;
  report.staging_budget_bytes = input.options.staging_bytes + input.session.staging_budget;
  report.staging_peak_bytes = input.session.staging_peak;
  if (input.planning != nullptr) {
    report.step = input.planning->records.front().step;
    report.incomplete_steps = input.planning->incomplete_steps;
  }
  if (input.planning != nullptr && !input.failed) {
    report.skipped = input.planning->resolved.skipped;
    for (const TensorId id : input.planning->resolved.zeroed) {
      report.zeroed.push_back(input.manifest->tensors[to_index(id)].spec.key);
    }
  }
  for (const ByteCount bytes : input.abandoned_bytes) report.resent_bytes += bytes;
  report.local_bytes = input.abandoned_bytes[static_cast<std::size_t>(Method::local)];
  report.moved_bytes = report.resent_bytes - report.local_bytes;
  const bool bound = input.options.bind_only && input.transfers != nullptr;
  if (!input.moved && !bound) return report;
  if (bound) {
    for (const move::Transfer& transfer : *input.transfers) report.needed_bytes += move::bytes_of(transfer);
  } else {
    const move::Tally& tally = input.moved->tally;
    report.staging_peak_bytes += input.moved->staging_peak_bytes;
    report.needed_bytes = tally.expected_bytes();
    report.local_bytes += tally.method_bytes(Method::local);
    report.overread_bytes = tally.extra_bytes();
    report.moved_bytes += tally.done_bytes() + report.overread_bytes - tally.method_bytes(Method::local);
    report.digest_seconds = input.moved->digest_seconds;
  }
  add_methods(report, input);
  std::vector<PeerReport> peers;
  for (MovedRow& moved : rows) peers.push_back(std::move(moved.row));
  report.peers = one_row_each(std::move(peers));
  return report;
}

std::vector<MovedRow> moved_rows(const ReportInput& input) {
  std::vector<MovedRow> rows;
  for (std::size_t i = 0; i < input.bindings.size(); ++i) {
    for (std::size_t j = 0; j < method_count; ++j) {
      const auto method = static_cast<Method>(j);
      auto row = row_of(input, i, method);
      if (!row) continue;
      rows.push_back({*std::move(row), move::Tally::WallClock::time_point::max()});
      if (input.moved) rows.back().began = input.moved->tally.peer_began(static_cast<std::uint32_t>(i), method);
    }
  }
  return rows;
}

std::vector<PeerReport> one_row_each(std::vector<PeerReport> rows) {
  std::ranges::sort(rows, {}, [](const PeerReport& row) { return std::tie(row.rank, row.path); });
  std::vector<PeerReport> merged;
  for (PeerReport& row : rows) {
    if (merged.empty() || merged.back().rank != row.rank || merged.back().path != row.path) {
      merged.push_back(std::move(row));
      continue;
    }
    PeerReport& whole = merged.back();
    whole.bytes += row.bytes;
    whole.predicted_seconds += row.predicted_seconds;
    whole.measured_seconds = std::max(whole.measured_seconds, row.measured_seconds);
  }
  return merged;
}

std::string figures_text(const RestoreReport& report) {
  const StageSeconds& s = report.seconds;
  std::string text = fmt::format(
      "{} after {:.3f} s (join {:.3f}, plan {:.3f}, bind {:.3f}, move {:.3f}, verify {:.3f}, commit {:.3f}): {} "
      "needed, {} "
      "from other ranks, {} from this process",
      report.step ? fmt::format(" at step {}", *report.step) : "", s.wall, s.join, s.plan, s.bind, s.move, s.verify,
      s.commit, support::human_bytes(report.needed_bytes), support::human_bytes(report.moved_bytes),
      support::human_bytes(report.local_bytes));
  // Of bytes that are yet to move there are only expectations.
  const auto took = [](const PeerReport& peer) { return std::pair(peer.measured_seconds, peer.predicted_seconds); };
  const auto longest = std::ranges::max_element(report.peers, {}, took);
  if (longest == report.peers.end() || took(*longest) == std::pair(0.0, 0.0)) return text;
  const bool moved = longest->measured_seconds > 0;
  text += fmt::format("; longest{}: {} from source rank {} by {}", moved ? "" : " expected",
                      support::human_bytes(longest->bytes), to_int(longest->rank), longest->path);
  text += moved ? fmt::format(" in {}, expected ", support::human_seconds(longest->measured_seconds)) : ", ";
  text += support::human_seconds(longest->predicted_seconds);
  if (!longest->fallback_detail.empty()) text += fmt::format(" ({})", longest->fallback_detail);
  return text;
}

}  // namespace shardwire::restore
