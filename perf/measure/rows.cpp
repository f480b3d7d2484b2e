// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "perf/measure/read_libraries.hpp"
#include "perf/measure/row.hpp"
#include "perf/measure/tag_loop.hpp"

namespace shardwire::perf {

namespace {

using OrderedJson = nlohmann::ordered_json;

// One turn of one measurement, in all members.
class TurnView {
 public:
  TurnView(const Setup& setup, const Outcome& outcome, std::size_t measurement, std::size_t turn)
      : TurnView(setup, outcome, measurement, turn, 1, static_cast<std::size_t>(setup.repeats)) {}
  /// Of the repeats `first` to `last`; 0 is the warm-up.
  TurnView(const Setup& setup, const Outcome& outcome, std::size_t measurement, std::size_t turn, std::size_t first,
           std::size_t last)
      : first_(first), last_(last), one_clock_(outcome.one_clock) {
    const auto turns = turns_of(setup.measurements[measurement]);
    const bool mpi = turns[turn].kind == Turn::Kind::mpi;
    for (const MemberFacts& member : mpi ? outcome.mpi->members : outcome.members) {
      const MeasurementFacts& facts = member.measurements[measurement];
      members_.push_back(&facts.turns[turn]);
      wants_.push_back(facts.wanted > 0);
    }
  }

  [[nodiscard]] const std::vector<const TurnFacts*>& members() const { return members_; }

  // From the start of the first target to the end of the last one; if clocks differ, of the slowest member.
  [[nodiscard]] Spread seconds() const {
    std::vector<double> out;
    for (std::size_t repeat = first_; repeat <= last_; ++repeat) {
      Span all{std::numeric_limits<std::int64_t>::max(), 0};
      std::int64_t longest = 0;
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (!wants_[i]) continue;
        const Span& span = members_[i]->spans[repeat];
        all.begin_ns = std::min(all.begin_ns, span.begin_ns);
        all.end_ns = std::max(all.end_ns, span.end_ns);
        longest = std::max(longest, span.end_ns - span.begin_ns);
      }
      out.push_back(static_cast<double>(one_clock_ ? all.end_ns - all.begin_ns : longest) * 1e-9);
    }
    return spread_of(out);
  }

  // Median of the processor time of all processes together.
  [[nodiscard]] double cpu_seconds() const {
    std::vector<double> out;
    for (std::size_t repeat = first_; repeat <= last_; ++repeat) {
      std::int64_t used = 0;
      for (const TurnFacts* member : members_) used += member->spans[repeat].cpu_ns;
      out.push_back(static_cast<double>(used) * 1e-9);
    }
    return spread_of(out).median;
  }

  // Median of a figure of the rank with the slowest restore.
  template <typename Figure>
  [[nodiscard]] double slowest(Figure figure) const {
    std::vector<double> out;
    for (std::size_t repeat = first_; repeat <= last_; ++repeat) {
      const auto* longest = *std::max_element(members_.begin(), members_.end(), [&](const auto* a, const auto* b) {
        return a->stages[repeat].wall < b->stages[repeat].wall;
      });
      out.push_back(figure(longest->stages[repeat]));
    }
    return spread_of(out).median;
  }

  [[nodiscard]] ByteCount sum(ByteCount RestoreReport::*field) const {
    ByteCount all = 0;
    for (const TurnFacts* member : members_) all += member->report.*field;
    return all;
  }
  [[nodiscard]] std::uint64_t max_rounds() const {
    std::uint64_t most = 0;
    for (const TurnFacts* member : members_) most = std::max(most, member->report.rounds);
    return most;
  }
  [[nodiscard]] ByteCount bytes(Method method) const {
    ByteCount all = 0;
    for (const TurnFacts* member : members_) all += member->report.methods[method].bytes;
    return all;
  }
  [[nodiscard]] std::string refused() const {
    for (const TurnFacts* member : members_) {
      if (!member->refused.empty()) return member->refused;
    }
    return {};
  }

 private:
  std::size_t first_;
  std::size_t last_;
  bool one_clock_;
  std::vector<const TurnFacts*> members_;
  std::vector<bool> wants_;
};

OrderedJson seconds_json(const Spread& spread, const std::string& prefix) {
  return {{prefix + "seconds", spread.median},
          {prefix + "seconds_min", spread.least},
          {prefix + "seconds_max", spread.most}};
}

OrderedJson stages_json(const TurnView& view) {
  OrderedJson stages;
  const std::pair<const char*, double StageSeconds::*> all[] = {
      {"join", &StageSeconds::join}, {"plan", &StageSeconds::plan},     {"bind", &StageSeconds::bind},
      {"move", &StageSeconds::move}, {"verify", &StageSeconds::verify}, {"commit", &StageSeconds::commit}};
  for (const auto& [name, stage] : all) {
    stages[name] = view.slowest([&, field = stage](const StageSeconds& s) { return s.*field; });
  }
  return stages;
}

void add_stages(OrderedJson& row, const TurnView& view) {
  row["stages"] = stages_json(view);
  row["outside_move"] =
      view.slowest([](const StageSeconds& s) { return s.wall > 0 ? (s.wall - s.move) / s.wall : 0.0; });
}

void add_bytes(OrderedJson& row, const TurnView& view) {
  const ByteCount needed = view.sum(&RestoreReport::needed_bytes);
  const ByteCount moved = view.sum(&RestoreReport::moved_bytes);
  const ByteCount local = view.sum(&RestoreReport::local_bytes);
  row["bytes"] = {
      {"needed", needed}, {"moved", moved}, {"local", local}, {"extra", view.sum(&RestoreReport::overread_bytes)}};
  row["delivered_over_needed"] = static_cast<double>(moved + local) / static_cast<double>(needed);
  OrderedJson& methods = row["methods"] = OrderedJson::object();
  MethodTable().each(
      [&](Method method, const MethodReport&) { methods[std::string(to_string(method))] = view.bytes(method); });
}

// The cost model's prediction and the measured time: of the slowest rank.
void add_costs(OrderedJson& row, const TurnView& view) {
  OrderedJson costs = OrderedJson::array();
  MethodTable().each([&](Method method, const MethodReport&) {
    const MethodReport* longest = nullptr;
    for (const TurnFacts* member : view.members()) {
      const MethodReport& one = member->report.methods[method];
      if (one.bytes == 0) continue;
      if (longest == nullptr || one.measured_seconds > longest->measured_seconds) longest = &one;
    }
    if (longest == nullptr) return;
    costs.push_back({{"method", to_string(method)},
                     {"bytes", longest->bytes},
                     {"runs", longest->runs},
                     {"predicted_seconds", longest->predicted_seconds},
                     {"measured_seconds", longest->measured_seconds}});
  });
  row["costs"] = costs;
}

void add_memory(OrderedJson& row, const Setup& setup, const TurnView& view) {
  ByteCount peak = 0;
  for (const TurnFacts* member : view.members()) peak = std::max(peak, member->report.staging_peak_bytes);
  row["staging"] = {{"budget", setup.staging_bytes},
                    {"peak", peak},
                    {"ratio", static_cast<double>(peak) / static_cast<double>(setup.staging_bytes)}};
  const MemoryFacts* worst = nullptr;
  const auto ratio = [](const MemoryFacts& facts) {
    return static_cast<double>(facts.own) / static_cast<double>(facts.allowed);
  };
  for (const TurnFacts* member : view.members()) {
    if (member->memory.allowed == 0) continue;
    if (worst == nullptr || ratio(member->memory) > ratio(*worst)) worst = &member->memory;
  }
  if (worst == nullptr) return;
  row["memory"] = {
      {"own", worst->own}, {"allowed", worst->allowed}, {"ratio", ratio(*worst)}, {"mapped", worst->mapped}};
}

// The references of the restore: all of them, and the fastest of each kind.
void add_bounds(OrderedJson& row, const Setup& setup, const Outcome& outcome, std::size_t number, double seconds) {
  const Measurement& measurement = setup.measurements[number];
  const auto turns = turns_of(measurement);
  OrderedJson bounds;
  OrderedJson cpu = row["cpu_seconds"];
  OrderedJson against;
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    if (turns[turn].kind == Turn::Kind::restore) continue;
    const TurnView view(setup, outcome, number, turn);
    const Spread spread = view.seconds();
    bounds[turns[turn].name] = spread.median;
    cpu[turns[turn].name] = view.cpu_seconds();
    OrderedJson& best = against[std::string(to_string(turns[turn].against))];
    if (!best.is_null() && best["seconds"].get<double>() <= spread.median) continue;
    best = {{"fastest", turns[turn].name}};
    best.update(seconds_json(spread, ""));
    best["ratio"] = spread.median / seconds;
    if (turns[turn].kind == Turn::Kind::mpi) best["transport"] = outcome.mpi->transport;
  }
  if (measurement.against.empty()) return;
  const OrderedJson& first = against[std::string(to_string(measurement.against.front()))];
  row["bound"] = first["fastest"];
  for (const char* field : {"seconds", "seconds_min", "seconds_max"}) row[std::string("bound_") + field] = first[field];
  row["ratio"] = first["ratio"];
  row["against"] = against;
  row["bounds"] = bounds;
  row["cpu_seconds"] = cpu;
}

// One-sided reads per second, of a restore that used no other method and of the plain loops of the same reads.
void add_reads(OrderedJson& row, const Setup& setup, const Outcome& outcome, std::size_t number, const TurnView& view) {
  std::uint64_t reads = 0;
  for (const MemberFacts& member : outcome.members) reads += member.measurements[number].reads;
  if (reads == 0) return;
  const auto per_second = [&](double seconds) { return static_cast<double>(reads) / seconds; };
  OrderedJson& out = row["reads"] = {{"count", reads}};
  const double move = view.slowest([](const StageSeconds& s) { return s.move; });
  const bool all_read = view.bytes(Method::read) == view.sum(&RestoreReport::moved_bytes);
  if (all_read && move > 0) out["restore_per_second"] = per_second(move);
  for (const Against against : setup.measurements[number].against) {
    if (!is_read_loop(against)) continue;
    const double loop = per_second(row["against"][std::string(to_string(against))]["seconds"].get<double>());
    out[std::string(to_string(against)) + "_per_second"] = loop;
    if (out.contains("restore_per_second")) {
      out["restore_over_" + std::string(to_string(against))] = out["restore_per_second"].get<double>() / loop;
    }
  }
}

std::string shown(const Outcome& outcome, int member) {
  return fmt::format("{} ({})", member, outcome.members[static_cast<std::size_t>(member)].host);
}

// The paths of the bytes, and the bytes through each port of a target's host.
void add_paths(OrderedJson& row, const Outcome& outcome, const Measurement& measurement, std::size_t number,
               std::size_t turn, double seconds) {
  std::set<std::string> hosts;
  std::map<std::pair<std::string, std::string>, ByteCount> paths;
  struct Nic {
    ByteCount bytes = 0;
    double line = 0;
  };
  std::map<std::pair<std::string, std::string>, Nic> nics;
  for (const MemberFacts& member : outcome.members) {
    hosts.insert(member.host + " " + member.domain);
    for (const PathFacts& path : member.measurements[number].turns[turn].paths) {
      paths[{path.path, path.port}] += path.bytes;
      if (path.port.empty()) continue;
      Nic& nic = nics[{member.domain, path.port}];
      nic.bytes += path.bytes;
      nic.line = path.line_bytes_per_second;
    }
  }
  row["hosts"] = hosts.size();
  if (!measurement.pairs.empty()) {
    OrderedJson& pairs = row["pairs"] = OrderedJson::array();
    for (const Pair& pair : measurement.pairs) {
      pairs.push_back({{"source", shown(outcome, pair.source)}, {"target", shown(outcome, pair.target)}});
    }
  }
  OrderedJson& all = row["paths"] = OrderedJson::array();
  for (const auto& [name, bytes] : paths)
    all.push_back({{"path", name.first}, {"port", name.second}, {"bytes", bytes}});
  if (nics.empty()) return;
  double through = 0;
  double line = std::numeric_limits<double>::max();  // of the slowest
  for (const auto& [name, nic] : nics) {
    through += static_cast<double>(nic.bytes);
    line = std::min(line, nic.line);
  }
  const double each = through / static_cast<double>(nics.size()) / seconds;
  OrderedJson& out = row["nics"] = {{"count", nics.size()}, {"bytes_per_second_each", each}};
  if (line > 0) {
    out["line_bytes_per_second"] = line;
    out["share_of_line"] = each / line;
  }
}

// Each byte is read on a device and written on one; transfers in between are not counted.
void add_devices(OrderedJson& row, const Outcome& outcome) {
  const DeviceFacts& first = outcome.members.front().device;
  if (first.name.empty()) return;
  std::set<std::pair<std::string, std::string>> devices;
  for (const MemberFacts& member : outcome.members) devices.insert({member.host, member.device.id});
  const auto count = static_cast<double>(devices.size());
  row["versions"]["device"] = first.runtime;
  OrderedJson& device = row["device"] =
      device_json(first.name, 2 * row["bytes_per_second"].get<double>() / count, first.peak_bytes_per_second);
  device["count"] = devices.size();
  if (!device.contains("share_of_peak") || !row.contains("ratio")) return;
  device["bound_share_of_peak"] = device["share_of_peak"].get<double>() / row["ratio"].get<double>();
}

OrderedJson row_of(const Setup& setup, const Outcome& outcome, const RowHead& head, std::size_t number,
                   std::size_t turn) {
  const Measurement& measurement = setup.measurements[number];
  const Turn what = turns_of(measurement)[turn];
  const TurnView view(setup, outcome, number, turn);
  const Spread seconds = view.seconds();
  OrderedJson row;
  row["name"] = "shardwire perf " + measurement.job.name;
  if (!head.target.empty()) row["target"] = head.target;
  row["options"] = head.options;
  row["commit"] = commit("");
  row["machine"] = machine();
  row["versions"] = versions();
  row["versions"]["fabric"] = outcome.members.front().fabric;
  if (outcome.mpi) row["versions"]["mpi"] = outcome.mpi->version;
  if (setup.has(Against::ucx)) row["versions"]["ucx"] = tag_loop_version();
  for (const Against against : measurement.against) {
    if (is_read_loop(against)) row["versions"][std::string(to_string(against))] = read_loop_version(against);
  }
  row["processes"] = setup.members();
  row["repeats"] = setup.repeats;
  const auto& method = measurement.methods[what.index];
  const bool local = view.sum(&RestoreReport::moved_bytes) == 0 && view.sum(&RestoreReport::local_bytes) > 0;
  row["method"] = method ? std::string(to_string(*method)) : local ? "local" : "auto";
  if (measurement.run_bytes > 0) row["run_bytes"] = measurement.run_bytes;
  row.update(seconds_json(seconds, ""));
  row["bytes_per_second"] = static_cast<double>(view.sum(&RestoreReport::needed_bytes)) / seconds.median;
  add_bytes(row, view);
  add_paths(row, outcome, measurement, number, turn, seconds.median);
  row["cpu_seconds"] = {{"restore", view.cpu_seconds()}};
  add_bounds(row, setup, outcome, number, seconds.median);
  add_devices(row, outcome);
  add_reads(row, setup, outcome, number, view);
  add_stages(row, view);
  if (setup.exchange) {
    row["rounds"] = {{"most", view.max_rounds()}, {"bytes", view.sum(&RestoreReport::rounds_bytes)}};
  }
  add_costs(row, view);
  add_memory(row, setup, view);
  ElementCount elements = 0;
  for (const TurnFacts* member : view.members()) elements += static_cast<ElementCount>(member->elements);
  row["elements"] = elements;
  return row;
}

// Calls visit(measurement, turn) for every restore.
template <typename Visit>
void each_restore(const Setup& setup, Visit visit) {
  for (std::size_t number = 0; number < setup.measurements.size(); ++number) {
    const auto turns = turns_of(setup.measurements[number]);
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      if (turns[turn].kind == Turn::Kind::restore) visit(number, turn, turns[turn]);
    }
  }
}

}  // namespace

std::vector<OrderedJson> rows_of(const Setup& setup, const Outcome& outcome, const RowHead& head) {
  std::vector<OrderedJson> rows;
  each_restore(setup, [&](std::size_t number, std::size_t turn, const Turn& /*what*/) {
    if (!TurnView(setup, outcome, number, turn).refused().empty()) return;
    rows.push_back(row_of(setup, outcome, head, number, turn));
  });
  return rows;
}

std::vector<OrderedJson> first_rows_of(const Setup& setup, const std::vector<Outcome>& starts, const RowHead& head) {
  std::vector<OrderedJson> rows;
  each_restore(setup, [&](std::size_t number, std::size_t turn, const Turn& /*what*/) {
    std::vector<double> first;
    std::vector<double> first_cpu;
    std::vector<double> later;
    std::vector<double> ratios;
    std::map<std::string, std::vector<double>> stages;
    for (const Outcome& outcome : starts) {
      const TurnView warming(setup, outcome, number, turn, 0, 0);
      if (!warming.refused().empty()) return;
      first.push_back(warming.seconds().median);
      first_cpu.push_back(warming.cpu_seconds());
      later.push_back(TurnView(setup, outcome, number, turn).seconds().median);
      ratios.push_back(first.back() / later.back());
      const OrderedJson took = stages_json(warming);
      for (const auto& [stage, seconds] : took.items()) stages[stage].push_back(seconds);
    }
    OrderedJson row = row_of(setup, starts.back(), head, number, turn);
    const Spread seconds = spread_of(later);
    row.update(seconds_json(seconds, ""));
    row["bytes_per_second"] = row["bytes"]["needed"].get<double>() / seconds.median;
    row["starts"] = starts.size();
    OrderedJson& out = row["first"] = seconds_json(spread_of(first), "");
    out["over_later"] = spread_of(ratios).median;
    out["cpu_seconds"] = spread_of(first_cpu).median;
    for (const auto& [stage, took] : stages) out["stages"][stage] = spread_of(took).median;
    rows.push_back(row);
  });
  return rows;
}

std::vector<std::string> refusals_of(const Setup& setup, const Outcome& outcome) {
  // A reason shared by many run lengths is printed once.
  std::map<std::string, std::vector<std::string>> where;
  each_restore(setup, [&](std::size_t number, std::size_t turn, const Turn& what) {
    const std::string refused = TurnView(setup, outcome, number, turn).refused();
    if (!refused.empty()) where[what.name + ": " + refused].push_back(setup.measurements[number].job.name);
  });
  std::vector<std::string> out;
  for (const auto& [why, jobs] : where) {
    const std::string more = jobs.size() > 1 ? fmt::format(" and {} more", jobs.size() - 1) : "";
    out.push_back(fmt::format("{} ({}{})", why, jobs.front(), more));
  }
  return out;
}

MoveSeconds move_seconds_of(const Setup& setup, const Outcome& outcome, std::size_t measurement, std::size_t method) {
  MoveSeconds out;
  each_restore(setup, [&](std::size_t number, std::size_t turn, const Turn& what) {
    if (number != measurement || what.index != method) return;
    const TurnView view(setup, outcome, number, turn);
    out.possible = view.refused().empty();
    if (out.possible) out.move = view.slowest([](const StageSeconds& s) { return s.move; });
  });
  return out;
}

}  // namespace shardwire::perf
