// SPDX-License-Identifier: Apache-2.0
#include "c/report.hpp"

#include "c/error.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/structs.hpp"

namespace shardwire::c_api {

shardwire_progress progress_of(const Progress& progress) {
  auto out = defaults<shardwire_progress>();
  out.stage = progress.stage;
  out.done_bytes = progress.done_bytes;
  out.total_bytes = progress.total_bytes;
  return out;
}

shardwire_usage usage_of(const SessionUsage& usage) {
  auto out = defaults<shardwire_usage>();
  out.serving_budget_bytes = usage.serving_budget_bytes;
  out.serving_peak_bytes = usage.serving_peak_bytes;
  out.registered_bytes = usage.registered_bytes;
  out.pinned_bytes = usage.pinned_bytes;
  out.registration_seconds = usage.registration_seconds;
  return out;
}

namespace {

void add_seconds(shardwire_figures& out, const StageSeconds& seconds) {
  out.wall_seconds = seconds.wall;
  out.join_seconds = seconds.join;
  out.plan_seconds = seconds.plan;
  out.bind_seconds = seconds.bind;
  out.move_seconds = seconds.move;
  out.verify_seconds = seconds.verify;
  out.commit_seconds = seconds.commit;
}

shardwire_figures figures_of(const RestoreReport& report) {
  auto out = defaults<shardwire_figures>();
  out.needed_bytes = report.needed_bytes;
  out.moved_bytes = report.moved_bytes;
  out.local_bytes = report.local_bytes;
  out.overread_bytes = report.overread_bytes;
  out.resent_bytes = report.resent_bytes;
  add_seconds(out, report.seconds);
  out.rounds = report.rounds;
  out.rounds_bytes = report.rounds_bytes;
  out.rounds_seconds = report.rounds_seconds;
  out.staging_budget_bytes = report.staging_budget_bytes;
  out.staging_peak_bytes = report.staging_peak_bytes;
  out.registered_bytes = report.registered_bytes;
  out.registration_seconds = report.registration_seconds;
  out.digest_seconds = report.digest_seconds;
  out.transport = report.transport.c_str();
  return out;
}

shardwire_method_figures figures_of(const MethodReport& report) {
  auto out = defaults<shardwire_method_figures>();
  out.moved_bytes = report.bytes;
  out.runs = report.runs;
  out.predicted_seconds = report.predicted_seconds;
  out.measured_seconds = report.measured_seconds;
  return out;
}

shardwire_peer_figures figures_of(const PeerReport& report) {
  auto out = defaults<shardwire_peer_figures>();
  out.rank = to_int(report.rank);
  out.moved_bytes = report.bytes;
  out.path = report.path.c_str();
  out.device = report.device.c_str();
  out.fallback_reason = static_cast<shardwire_fallback_reason>(report.fallback_reason);
  out.fallback_detail = report.fallback_detail.c_str();
  out.predicted_seconds = report.predicted_seconds;
  out.measured_seconds = report.measured_seconds;
  return out;
}

shardwire_lost_source lost_source_of(const LostSource& source) {
  auto out = defaults<shardwire_lost_source>();
  out.rank = to_int(source.rank);
  out.reason = code_of(source.reason);
  out.why = source.why.c_str();
  out.after_seconds = source.after_seconds;
  out.boxes_replanned = source.boxes_replanned;
  out.resent_bytes = source.resent_bytes;
  return out;
}

shardwire_code give_key(const shardwire_report* report, std::vector<TensorKey> RestoreReport::*keys, size_t index,
                        shardwire_key* key, shardwire_error** error) {
  return give(key, error, [&] { return key_of(entry(object(report, "report").*keys, index, "key")); });
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_figures_init(shardwire_figures* figures, size_t size) {
  initialize(figures, size);
}

void shardwire_method_figures_init(shardwire_method_figures* figures, size_t size) {
  initialize(figures, size);
}

void shardwire_peer_figures_init(shardwire_peer_figures* figures, size_t size) {
  initialize(figures, size);
}

void shardwire_lost_source_init(shardwire_lost_source* source, size_t size) {
  initialize(source, size);
}

void shardwire_usage_init(shardwire_usage* usage, size_t size) {
  initialize(usage, size);
}

void shardwire_report_free(shardwire_report* report) {
  destroy(report);
}

shardwire_code shardwire_report_copy(const shardwire_report* report, shardwire_report** copy, shardwire_error** error) {
  return create(copy, error, [&] { return object(report, "report"); });
}

shardwire_code shardwire_report_add(shardwire_report* report, const shardwire_report* next, shardwire_error** error) {
  return guarded(error, [&] { object(report, "report") += object(next, "next"); });
}

shardwire_code shardwire_report_figures(const shardwire_report* report, shardwire_figures* figures,
                                        shardwire_error** error) {
  return guarded(error, [&] { fill(figures, figures_of(object(report, "report")), "figures"); });
}

shardwire_code shardwire_report_method(const shardwire_report* report, shardwire_method method,
                                       shardwire_method_figures* figures, shardwire_error** error) {
  return guarded(
      error, [&] { fill(figures, figures_of(object(report, "report").methods[method_of(method)]), "method_figures"); });
}

size_t shardwire_report_peer_count(const shardwire_report* report) {
  return report ? peek(report)->peers.size() : 0;
}

shardwire_code shardwire_report_peer(const shardwire_report* report, size_t index, shardwire_peer_figures* figures,
                                     shardwire_error** error) {
  return guarded(
      error, [&] { fill(figures, figures_of(entry(object(report, "report").peers, index, "peer")), "peer_figures"); });
}

size_t shardwire_report_skipped_count(const shardwire_report* report) {
  return report ? peek(report)->skipped.size() : 0;
}

shardwire_code shardwire_report_skipped(const shardwire_report* report, size_t index, shardwire_key* key,
                                        shardwire_error** error) {
  return give_key(report, &RestoreReport::skipped, index, key, error);
}

size_t shardwire_report_zeroed_count(const shardwire_report* report) {
  return report ? peek(report)->zeroed.size() : 0;
}

shardwire_code shardwire_report_zeroed(const shardwire_report* report, size_t index, shardwire_key* key,
                                       shardwire_error** error) {
  return give_key(report, &RestoreReport::zeroed, index, key, error);
}

bool shardwire_report_step(const shardwire_report* report, int64_t* step) {
  if (!report || !peek(report)->step) return false;
  if (step) *step = *peek(report)->step;
  return true;
}

size_t shardwire_report_incomplete_count(const shardwire_report* report) {
  return report ? peek(report)->incomplete_steps.size() : 0;
}

shardwire_code shardwire_report_incomplete(const shardwire_report* report, size_t index, int64_t* step,
                                           size_t* gap_count, shardwire_error** error) {
  return guarded(error, [&] {
    const IncompleteStep& one = entry(object(report, "report").incomplete_steps, index, "incomplete step");
    if (step) *step = one.step;
    if (gap_count) *gap_count = one.gaps.size();
  });
}

shardwire_code shardwire_report_incomplete_gap(const shardwire_report* report, size_t index, size_t gap_index,
                                               shardwire_gap* gap, shardwire_error** error) {
  return give(gap, error, [&] {
    return gap_of(
        entry(entry(object(report, "report").incomplete_steps, index, "incomplete step").gaps, gap_index, "gap"));
  });
}

size_t shardwire_report_lost_count(const shardwire_report* report) {
  return report ? peek(report)->lost.size() : 0;
}

shardwire_code shardwire_report_lost(const shardwire_report* report, size_t index, shardwire_lost_source* source,
                                     shardwire_error** error) {
  return guarded(error, [&] {
    fill(source, lost_source_of(entry(object(report, "report").lost, index, "lost source")), "lost_source");
  });
}

size_t shardwire_report_corrupt_count(const shardwire_report* report) {
  return report ? peek(report)->corrupt.size() : 0;
}

shardwire_code shardwire_report_corrupt(const shardwire_report* report, size_t index, shardwire_key* key,
                                        shardwire_box* box, int32_t* source, shardwire_error** error) {
  return guarded(error, [&] {
    const CorruptBox& one = entry(object(report, "report").corrupt, index, "corrupt");
    if (key) *key = {one.fqn.c_str(), one.state.c_str()};
    if (box) *box = box_of(one.box);
    if (source) *source = to_int(one.source);
  });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
