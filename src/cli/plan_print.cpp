// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_print.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <stdexcept>
#include <tuple>

#include "cli/color.hpp"
#include "cli/output.hpp"
#include "cli/text.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

constexpr std::size_t flows_shown = 10;
constexpr std::size_t labels_shown = 32;

void append_list(fmt::memory_buffer& buffer, const Extents& values) {
  char opening = '[';
  for (const Extent value : values) {
    buffer.push_back(opening);
    const fmt::format_int digits(value);
    buffer.append(digits.data(), digits.data() + digits.size());
    opening = ',';
  }
  if (values.empty()) buffer.push_back(opening);
  buffer.push_back(']');
}

double percent(ByteCount part, ByteCount whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

void print_spread(const char* name, const Spread& spread, std::string (*text)(double)) {
  if (spread.count == 0) return;
  fmt::print("    {:<12}{:>10}{:>12}{:>12}\n", name, text(spread.least),
             text(spread.sum / static_cast<double>(spread.count)), text(spread.most));
}

bool larger(const Flow& a, const Flow& b) {
  return std::tuple(b.bytes, a.target, a.source) < std::tuple(a.bytes, b.target, b.source);
}

void print_largest(const std::vector<Flow>& flows) {
  if (flows.empty()) return;
  fmt::print("  largest flows\n");
  for (const Flow& flow : flows) {
    fmt::print("    source {} -> target {}: {}\n", to_int(flow.source), to_int(flow.target),
               human_bytes(static_cast<double>(flow.bytes)));
  }
}

}  // namespace

void JsonPieces::begin(bool with_pieces) {
  with_pieces_ = with_pieces;
  fmt::format_to(std::back_inserter(buffer_), "{{{}", with_pieces ? "\"pieces\":[" : "");
}

void JsonPieces::add(const PlannedTransfer& transfer) {
  const TensorKey& key = transfer.tensor.key;
  if (last_ != &key) {
    last_key_ = fmt::format("\"fqn\":{},\"state\":{}", json_text(key.fqn), json_text(key.state));
    last_ = &key;
  }
  fmt::format_to(std::back_inserter(buffer_), FMT_STRING("{}\n{{{},\"src\":{},\"dst\":{},\"offset\":"),
                 first_ ? "" : ",", last_key_, to_int(transfer.source), to_int(transfer.target));
  append_list(buffer_, transfer.box.offset);
  fmt::format_to(std::back_inserter(buffer_), FMT_STRING(",\"size\":"));
  append_list(buffer_, transfer.box.size);
  fmt::format_to(std::back_inserter(buffer_), FMT_STRING(",\"bytes\":{}}}"), transfer.bytes);
  first_ = false;
  if (buffer_.size() > (1u << 16)) flush();
}

void JsonPieces::end(const JobTotals& totals, bool one_rank, const std::optional<Relabelling>& relabelling,
                     std::string_view more) {
  const auto out = std::back_inserter(buffer_);
  fmt::format_to(out,
                 "{}\"totals\":{{\"needed\":{},\"local\":{},\"remote\":{},\"relabelled_remote\":{},"
                 "\"max_egress\":{},\"max_ingress\":{},\"runs\":{}}},\"labels\":",
                 with_pieces_ ? "],\n" : "", totals.needed, totals.local, totals.remote,
                 relabelling ? std::to_string(relabelling->remote) : "null",
                 one_rank ? "null" : std::to_string(totals.max_egress), totals.max_ingress, totals.runs);
  if (relabelling) {
    fmt::format_to(out, "[{}]", fmt::join(relabelling->labels, ","));
  } else {
    fmt::format_to(out, "null");
  }
  fmt::format_to(out, "{}}}\n", more);
  flush();
}

void JsonPieces::flush() {
  write_output({buffer_.data(), buffer_.size()});
  buffer_.clear();
}

GapLines::GapLines(std::uint64_t gaps, bool json) : json_(json) {
  support::write_stderr("{} layout_mismatch: {} wanted region{} no holder:\n",
                        marked("shardwire:", Mark::failure, stderr), gaps, gaps == 1 ? " has" : "s have");
  if (json_) write_output("{\"gaps\":[");
}

void GapLines::add(const Gap& gap) {
  support::write_stderr("  {} {} {} wanted by rank {}\n", printable(gap.fqn), printable(gap.state), to_string(gap.box),
                        to_int(gap.target));
  if (json_) write_output((first_ ? "\n" : ",\n") + json_text(gap));
  first_ = false;
}

void GapLines::end() {
  if (json_) write_output("]}\n");
}

void Spread::add(double value) {
  least = count == 0 ? value : std::min(least, value);
  most = std::max(most, value);
  sum += value;
  ++count;
}

void TableRows::add(const TargetTotals& own, std::span<const Flow> flows) {
  if (own.pieces == 0) {
    ++idle;
    return;
  }
  pieces.add(static_cast<double>(own.pieces));
  runs.add(static_cast<double>(own.runs));
  needed.add(static_cast<double>(own.needed));
  remote.add(static_cast<double>(own.needed - own.local));
  for (const Flow& flow : flows) {
    if (flow.source == flow.target || (largest.size() == flows_shown && !larger(flow, largest.back()))) continue;
    if (largest.size() == flows_shown) largest.pop_back();
    largest.insert(std::upper_bound(largest.begin(), largest.end(), flow, larger), flow);
  }
}

void print_table(const Case& job, const JobTotals& totals, const TableRows& rows,
                 const std::optional<Relabelling>& relabelling, const TableOptions& options) {
  const std::string lost = job.source.lost.empty() ? "" : fmt::format(" ({} lost)", job.source.lost.size());
  const std::string states = job.tensor_states == job.tensors * job.states.size()
                                 ? fmt::format("x {} states", job.states.size())
                                 : fmt::format("with {} states in all", job.tensor_states);
  fmt::print("{}: {} tensors {}, {} source ranks{} -> {} target ranks\n", job.name.empty() ? "case" : job.name,
             job.tensors, states, job.source.ranks, lost, job.target.ranks);
  if (options.rank) fmt::print("  only what target rank {} needs\n", to_int(*options.rank));
  const auto line = [&](const char* name, ByteCount bytes, const char* meaning) {
    fmt::print("  {:<12}{:>10}{:>8.2f} %   {}\n", name, human_bytes(static_cast<double>(bytes)),
               percent(bytes, totals.needed), meaning);
  };
  line("needed", totals.needed, "wanted by target ranks, replicas counted each");
  line("local", totals.local, "a rank holds it already: copied inside the process");
  line("remote", totals.remote, "crosses between ranks, where target rank i runs in the process of source rank i");
  if (relabelling) line("relabelled", relabelling->remote, "crosses with the best assignment (--relabel)");
  if (!options.rank) line("max egress", totals.max_egress, "most remote bytes out of one source rank");
  line("max ingress", totals.max_ingress, "most remote bytes into one target rank");
  const double runs = static_cast<double>(totals.runs);
  fmt::print("  {} pieces in {} contiguous runs, {} per run on average\n", totals.pieces, totals.runs,
             human_bytes(totals.runs == 0 ? 0 : static_cast<double>(totals.needed) / runs));
  if (!job.by_value.empty()) fmt::print("  {} one-element tensors go by value\n", job.by_value.size());

  if (!options.rank) {
    fmt::print("  per target rank    least        mean        most\n");
    print_spread("pieces", rows.pieces, human_count);
    print_spread("runs", rows.runs, human_count);
    print_spread("needed", rows.needed, human_bytes);
    print_spread("remote", rows.remote, human_bytes);
    if (rows.idle > 0) fmt::print("    {} target ranks need nothing and are not counted here\n", rows.idle);
  }
  if (relabelling && options.labels) {
    fmt::print("  best assignment: target ranks {}\n", label_text(relabelling->labels, labels_shown));
  }
  if (!options.brief) print_largest(rows.largest);
}

}  // namespace shardwire::cli
