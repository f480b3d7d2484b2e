// SPDX-License-Identifier: Apache-2.0
#include "c/plan.hpp"

#include "c/callbacks.hpp"
#include "c/error.hpp"
#include "c/guard.hpp"
#include "c/job_layout.hpp"
#include "c/options.hpp"
#include "c/structs.hpp"
#include "shardwire/relabel.hpp"

namespace shardwire::c_api {

PlanRecord::PlanRecord(std::shared_ptr<Planner> made_by, Rank target)
    : planner(std::move(made_by)), plan(planner->plan(target)), gaps(gaps_of(plan.gaps)) {
  for (const std::vector<Rank>& holders : plan.holder_sets) holder_sets.push_back(numbers(holders));
}

namespace {

Topology topology_of(const shardwire_topology* topology) {
  const shardwire_topology given = read_options(topology, "topology");
  return {list(given.colocated, given.colocated_count, "colocated"),
          list(given.source_host, given.source_host_count, "source_host"),
          list(given.target_host, given.target_host_count, "target_host")};
}

std::shared_ptr<Planner> make_planner(const shardwire_job_layout* from, const shardwire_job_layout* to,
                                      const shardwire_topology* topology = nullptr,
                                      shardwire_replicas replicas = SHARDWIRE_REPLICAS_SPREAD) {
  return std::make_shared<Planner>(job_of(object(from, "from")), job_of(object(to, "to")), topology_of(topology),
                                   replicas_of(replicas));
}

Planner& planner_of(shardwire_planner* planner) {
  return *object(planner, "planner");
}

std::vector<Rank> lost_ranks(const int32_t* lost, size_t count) {
  return ranks(lost, count, "lost");
}

std::vector<shardwire_delivery> deliveries_of(std::span<const Delivery> deliveries) {
  std::vector<shardwire_delivery> out;
  for (const Delivery& one : deliveries) {
    out.push_back({to_index(one.held), to_int(one.target), one.section, to_index(one.wanted), box_of(one.box)});
  }
  return out;
}

std::vector<shardwire_flow> flows_of(std::span<const Flow> flows) {
  std::vector<shardwire_flow> out;
  for (const Flow& flow : flows) out.push_back({to_int(flow.source), to_int(flow.target), flow.bytes});
  return out;
}
std::vector<Flow> flows_of(std::span<const shardwire_flow> flows) {
  std::vector<Flow> out;
  for (const shardwire_flow& flow : flows) out.push_back({Rank{flow.source}, Rank{flow.target}, flow.flow_bytes});
  return out;
}

shardwire_transfer transfer_of(const PlannedTransfer& planned) {
  return {key_of(planned.tensor.key), to_int(planned.source), to_int(planned.target), box_of(planned.box),
          planned.bytes};
}

shardwire_totals totals_of(const JobTotals& totals) {
  auto out = defaults<shardwire_totals>();
  out.needed_bytes = totals.needed;
  out.local_bytes = totals.local;
  out.remote_bytes = totals.remote;
  out.max_egress_bytes = totals.max_egress;
  out.max_ingress_bytes = totals.max_ingress;
  out.pieces = totals.pieces;
  out.runs = totals.runs;
  out.gaps = totals.gaps;
  return out;
}

shardwire_target_totals target_totals(Rank target, const TargetTotals& totals) {
  return {to_int(target), totals.needed, totals.local, totals.pieces, totals.runs};
}

std::vector<shardwire_target_totals> targets_of(const JobTotals& totals) {
  std::vector<shardwire_target_totals> out;
  for (const TargetTotals& one : totals.targets) {
    out.push_back(target_totals(Rank{static_cast<std::int32_t>(out.size())}, one));
  }
  return out;
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_topology_init(shardwire_topology* topology, size_t size) {
  initialize(topology, size);
}

void shardwire_totals_init(shardwire_totals* totals, size_t size) {
  initialize(totals, size);
}

void shardwire_planner_free(shardwire_planner* planner) {
  destroy(planner);
}

shardwire_code shardwire_planner_create(const shardwire_job_layout* from, const shardwire_job_layout* to,
                                        const shardwire_topology* topology, shardwire_replicas replicas,
                                        shardwire_planner** planner, shardwire_error** error) {
  return create(planner, error, [&] { return make_planner(from, to, topology, replicas); });
}

void shardwire_plan_free(shardwire_plan* plan) {
  destroy(plan);
}

shardwire_code shardwire_planner_plan(shardwire_planner* planner, int32_t target, shardwire_plan** plan,
                                      shardwire_error** error) {
  return create(plan, error, [&] { return PlanRecord(object(planner, "planner"), Rank{target}); });
}

size_t shardwire_plan_piece_count(const shardwire_plan* plan) {
  return plan ? peek(plan)->plan.pieces.size() : 0;
}

shardwire_code shardwire_plan_piece(const shardwire_plan* plan, size_t index, shardwire_piece* piece,
                                    shardwire_error** error) {
  return give(piece, error, [&] {
    const PlanRecord& record = object(plan, "plan");
    const Piece& found = entry(record.plan.pieces, index, "piece");
    const std::vector<int32_t>& holders = record.holder_sets[found.holders];
    return shardwire_piece{to_index(found.tensor), box_of(record.plan.box(found)), holders.data(), holders.size()};
  });
}

const shardwire_gap* shardwire_plan_gaps(const shardwire_plan* plan, size_t* count) {
  return data_of(plan ? &peek(plan)->gaps : nullptr, count);
}

void shardwire_schedule_free(shardwire_schedule* schedule) {
  destroy(schedule);
}

shardwire_code shardwire_plan_schedule(const shardwire_plan* plan, const int32_t* lost, size_t lost_count,
                                       shardwire_schedule** schedule, shardwire_error** error) {
  return create(schedule, error, [&] {
    const PlanRecord& record = object(plan, "plan");
    return record.planner->schedule(record.plan, lost_ranks(lost, lost_count));
  });
}

size_t shardwire_schedule_count(const shardwire_schedule* schedule) {
  return schedule ? peek(schedule)->items.size() : 0;
}

shardwire_code shardwire_schedule_piece(const shardwire_schedule* schedule, size_t index,
                                        shardwire_scheduled_piece* piece, shardwire_error** error) {
  return give(piece, error, [&] {
    const Schedule& known = object(schedule, "schedule");
    const ScheduledPiece& item = entry(known.items, index, "piece");
    return shardwire_scheduled_piece{item.piece,          to_int(item.source), item.section,
                                     to_index(item.held), item.wave,           box_of(known.box(item))};
  });
}

void shardwire_deliveries_free(shardwire_deliveries* deliveries) {
  destroy(deliveries);
}

const shardwire_delivery* shardwire_deliveries_data(const shardwire_deliveries* deliveries, size_t* count) {
  return data_of(peek(deliveries), count);
}

shardwire_code shardwire_planner_deliveries(shardwire_planner* planner, int32_t source, const int32_t* lost,
                                            size_t lost_count, shardwire_deliveries** deliveries,
                                            shardwire_error** error) {
  return create(deliveries, error, [&] {
    return deliveries_of(planner_of(planner).deliveries(Rank{source}, lost_ranks(lost, lost_count)));
  });
}

shardwire_code shardwire_plan_for_target(const shardwire_job_layout* from, const shardwire_job_layout* to,
                                         int32_t target, shardwire_plan** plan, shardwire_error** error) {
  return create(plan, error, [&] { return PlanRecord(make_planner(from, to), Rank{target}); });
}

shardwire_code shardwire_plan_for_source(const shardwire_job_layout* from, const shardwire_job_layout* to,
                                         int32_t source, shardwire_deliveries** deliveries, shardwire_error** error) {
  return create(deliveries, error, [&] { return deliveries_of(make_planner(from, to)->deliveries(Rank{source})); });
}

void shardwire_flows_free(shardwire_flows* flows) {
  destroy(flows);
}

const shardwire_flow* shardwire_flows_data(const shardwire_flows* flows, size_t* count) {
  return data_of(peek(flows), count);
}

shardwire_code shardwire_planner_holdings(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                          shardwire_flows** flows, shardwire_error** error) {
  return create(flows, error, [&] { return flows_of(planner_of(planner).holdings(lost_ranks(lost, lost_count))); });
}

shardwire_code shardwire_planner_flows(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                       shardwire_flows** flows, shardwire_error** error) {
  return create(flows, error, [&] { return flows_of(planner_of(planner).totals(lost_ranks(lost, lost_count)).flows); });
}

shardwire_code shardwire_planner_totals(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                        shardwire_totals* totals, shardwire_error** error) {
  return guarded(error, [&] {
    check_initialized(totals, "totals");
    fill(totals, totals_of(planner_of(planner).totals(lost_ranks(lost, lost_count))), "totals");
  });
}

shardwire_code shardwire_planner_tally(shardwire_planner* planner, const int32_t* targets, size_t count,
                                       shardwire_totals* totals, shardwire_error** error) {
  return guarded(error, [&] {
    check_initialized(totals, "totals");
    fill(totals, totals_of(planner_of(planner).tally(ranks(targets, count, "targets"))), "totals");
  });
}

void shardwire_targets_free(shardwire_targets* targets) {
  destroy(targets);
}

const shardwire_target_totals* shardwire_targets_data(const shardwire_targets* targets, size_t* count) {
  return data_of(peek(targets), count);
}

shardwire_code shardwire_planner_targets(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                         shardwire_targets** targets, shardwire_error** error) {
  return create(targets, error, [&] { return targets_of(planner_of(planner).totals(lost_ranks(lost, lost_count))); });
}

shardwire_code shardwire_planner_each_target(shardwire_planner* planner, const int32_t* targets, size_t count,
                                             void (*visit)(void* context, const shardwire_target_totals* totals,
                                                           const shardwire_flow* flows, size_t flow_count),
                                             void* context, shardwire_error** error) {
  return guarded(error, [&] {
    required(visit, "visit");
    const auto on_target = [&](Rank target, const TargetTotals& own, std::span<const Flow> of_target) {
      const shardwire_target_totals known = target_totals(target, own);
      const std::vector<shardwire_flow> flows = flows_of(of_target);
      called("visit", [&] { visit(context, &known, flows.data(), flows.size()); });
    };
    (void)planner_of(planner).tally(ranks(targets, count, "targets"), on_target);
  });
}

shardwire_code shardwire_planner_each_transfer(shardwire_planner* planner, const int32_t* targets, size_t count,
                                               void (*visit)(void* context, const shardwire_transfer* transfer),
                                               void* context, shardwire_error** error) {
  return guarded(error, [&] {
    required(visit, "visit");
    planner_of(planner).each_transfer(ranks(targets, count, "targets"), [&](const PlannedTransfer& planned) {
      const shardwire_transfer known = transfer_of(planned);
      called("visit", [&] { visit(context, &known); });
    });
  });
}

shardwire_code shardwire_planner_each_gap(shardwire_planner* planner, const int32_t* targets, size_t count,
                                          void (*visit)(void* context, const shardwire_gap* gap), void* context,
                                          shardwire_error** error) {
  return guarded(error, [&] {
    required(visit, "visit");
    planner_of(planner).each_gap(ranks(targets, count, "targets"), [&](const Gap& gap) {
      const shardwire_gap known = gap_of(gap);
      called("visit", [&] { visit(context, &known); });
    });
  });
}

shardwire_code shardwire_best_assignment(int32_t sources, int32_t targets, const shardwire_flow* holdings,
                                         size_t holding_count, const int32_t* lost, size_t lost_count,
                                         int32_t* process_of_target, shardwire_error** error) {
  return guarded(error, [&] {
    const auto assigned = best_assignment(sources, targets, flows_of(array(holdings, holding_count, "holdings")),
                                          lost_ranks(lost, lost_count));
    std::copy(assigned.begin(), assigned.end(), required(process_of_target, "process_of_target"));
  });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
