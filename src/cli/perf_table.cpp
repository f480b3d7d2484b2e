// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/perf_options.hpp"
#include "cli/text.hpp"
#include "support/list_of.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

double speed(const OrderedJson& row, double seconds) {
  return row["bytes"]["needed"].get<double>() / seconds;
}

// Bytes per second of each NIC, and the line rate of its port.
std::string nics_of(const OrderedJson& row) {
  if (!row.contains("nics")) return "";
  const OrderedJson& nics = row["nics"];
  std::string text = fmt::format("{} a NIC", human_speed(nics["bytes_per_second_each"].get<double>()));
  if (nics["count"].get<int>() > 1) text = fmt::format("{} NICs, {}", nics["count"].get<int>(), text);
  if (nics.contains("share_of_line")) {
    text += fmt::format(", {:.0f} % of {:g} Gbit/s", 100 * nics["share_of_line"].get<double>(),
                        nics["line_bytes_per_second"].get<double>() * 8e-9);
  }
  return text;
}

std::string paths_of(const OrderedJson& row) {
  std::string text;
  for (const OrderedJson& path : row["paths"]) {
    const std::string port = path["port"].get<std::string>();
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", path["path"].get<std::string>(),
                        port.empty() ? "" : " (" + port + ")");
  }
  return text;
}

void print_case(const OrderedJson& row) {
  support::write_stderr("{} ({}): {}, {} processes, {}\n", row["name"].get<std::string>(),
                        row["method"].get<std::string>(), human_bytes(row["bytes"]["needed"].get<double>()),
                        row["processes"].get<int>(), row["versions"]["fabric"].get<std::string>());
  const auto line = [&](const std::string& name, double seconds, double cpu_seconds) {
    support::write_stderr("  {:<20} {:>9.5f} s {:>12} {:>9.4f} s of processor time\n", name, seconds,
                          human_speed(speed(row, seconds)), cpu_seconds);
  };
  const OrderedJson& cpu = row["cpu_seconds"];
  line("restore", row["seconds"].get<double>(), cpu["restore"].get<double>());
  if (row.contains("first")) {
    const OrderedJson& first = row["first"];
    line("first restore", first["seconds"].get<double>(), first["cpu_seconds"].get<double>());
    support::write_stderr("  first restores of {} starts took {:.2f} of the time of later ones\n",
                          row["starts"].get<int>(), first["over_later"].get<double>());
  }
  if (row.contains("bounds")) {
    for (const auto& [name, seconds] : row["bounds"].items())
      line(name, seconds.get<double>(), cpu[name].get<double>());
    for (const auto& [kind, one] : row["against"].items()) {
      support::write_stderr("  {:.2f} of the speed of {}{}\n", one["ratio"].get<double>(),
                            one["fastest"].get<std::string>(),
                            one.contains("transport") ? " (" + one["transport"].get<std::string>() + ")" : "");
    }
  }
  support::write_stderr("  {:.2f} % of the time outside move; staging at most {} of {}",
                        100 * row["outside_move"].get<double>(), human_bytes(row["staging"]["peak"].get<double>()),
                        human_bytes(row["staging"]["budget"].get<double>()));
  if (!row["paths"].empty()) support::write_stderr("; {}", paths_of(row));
  if (row.contains("nics")) support::write_stderr("; {}", nics_of(row));
  if (row.contains("memory"))
    support::write_stderr("; memory {:.2f} of the limit", row["memory"]["ratio"].get<double>());
  support::write_stderr("; {} elements right\n", row["elements"].get<std::uint64_t>());
}

// One line for each pair, or for all pairs that ran at once.
void print_pairs(const std::vector<OrderedJson>& rows) {
  const OrderedJson& first = rows.front();
  support::write_stderr("{} processes on {}, {} by each target, {}\n{:>24} {:>9} {:>11}\n",
                        first["processes"].get<int>(), support::counted(first["hosts"].get<int>(), "host"),
                        human_bytes(first["bytes"]["needed"].get<double>()),
                        first["versions"]["fabric"].get<std::string>(), "target <- source", "run", "speed");
  for (const OrderedJson& row : rows) {
    const OrderedJson& pairs = row["pairs"];
    const std::string who = pairs.size() == 1 ? fmt::format("{} <- {}", pairs[0]["target"].get<std::string>(),
                                                            pairs[0]["source"].get<std::string>())
                                              : fmt::format("{} pairs at once", pairs.size());
    std::string against;
    if (row.contains("against")) {
      for (const auto& [kind, one] : row["against"].items()) {
        against += fmt::format("; {:.2f} of {} ({})", one["ratio"].get<double>(), kind,
                               human_speed(speed(row, one["seconds"].get<double>())));
      }
    }
    const std::string nics = nics_of(row);
    support::write_stderr("{:>24} {:>9} {:>11}  {}{}{}{}\n", who, exact_bytes(row["run_bytes"].get<ByteCount>()),
                          human_speed(row["bytes_per_second"].get<double>()), paths_of(row), nics.empty() ? "" : "; ",
                          nics, against);
  }
}

// One line for each run length, one column for each method.
void print_sweep(const std::vector<OrderedJson>& rows) {
  std::vector<std::string> columns;
  std::map<ByteCount, std::map<std::string, std::string>> cells;
  const auto put = [&](ByteCount run, const std::string& column, double bytes_per_second) {
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
    cells[run][column] = human_speed(bytes_per_second);
  };
  for (const OrderedJson& row : rows) {
    put(row["run_bytes"].get<ByteCount>(), row["method"].get<std::string>(), row["bytes_per_second"].get<double>());
  }
  for (const OrderedJson& row : rows) {
    if (!row.contains("against") || row["method"] == "local") continue;
    for (const auto& [kind, one] : row["against"].items()) {
      put(row["run_bytes"].get<ByteCount>(), kind, speed(row, one["seconds"].get<double>()));
    }
  }
  const OrderedJson& first = rows.front();
  support::write_stderr("{} processes, {} wanted, {}\n{:>10}", first["processes"].get<int>(),
                        human_bytes(first["bytes"]["needed"].get<double>()),
                        first["versions"]["fabric"].get<std::string>(), "run");
  for (const std::string& column : columns) support::write_stderr(" {:>11}", column);
  support::write_stderr("\n");
  for (const auto& [run, line] : cells) {
    support::write_stderr("{:>10}", exact_bytes(run));
    for (const std::string& column : columns) {
      support::write_stderr(" {:>11}", line.count(column) > 0 ? line.at(column) : "-");
    }
    support::write_stderr("\n");
  }
  // The ports at each method's fastest point.
  std::map<std::string, const OrderedJson*> fastest;
  for (const OrderedJson& row : rows) {
    const OrderedJson*& best = fastest[row["method"].get<std::string>()];
    if (best == nullptr || (*best)["bytes_per_second"] < row["bytes_per_second"]) best = &row;
  }
  for (const auto& [method, row] : fastest) {
    if (!row->contains("nics")) continue;
    support::write_stderr("{} at {}: {}; {}\n", method, exact_bytes((*row)["run_bytes"].get<ByteCount>()),
                          paths_of(*row), nics_of(*row));
  }
}

}  // namespace

void print_rows(const std::vector<OrderedJson>& rows) {
  if (rows.empty()) return;
  if (rows.front().contains("pairs")) {
    print_pairs(rows);
  } else if (rows.front().contains("run_bytes")) {
    print_sweep(rows);
  } else {
    for (const OrderedJson& row : rows) print_case(row);
  }
}

}  // namespace shardwire::cli
