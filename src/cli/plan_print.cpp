// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_print.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <stdexcept>
#include <tuple>

#include "cli/text.hpp"

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

// One line each, and nothing that a terminal would take for a command.
std::string printable(const std::string& name) {
  const bool plain = std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; });
  return plain ? name : json_text(name);
}

double percent(ByteCount part, ByteCount whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

// One line "  name   min   mean   max" over ranks that want something.
template <typename Of>
void print_spread(const char* name, const std::vector<TargetTotals>& ranks, std::string (*text)(double), Of of) {
  double least = 0;
  double most = 0;
  double sum = 0;
  std::size_t count = 0;
  for (const TargetTotals& rank : ranks) {
    if (rank.pieces == 0) continue;
    const auto value = static_cast<double>(of(rank));
    least = count == 0 ? value : std::min(least, value);
    most = std::max(most, value);
    sum += value;
    ++count;
  }
  if (count == 0) return;
  fmt::print("    {:<12}{:>10}{:>12}{:>12}\n", name, text(least), text(sum / static_cast<double>(count)), text(most));
}

void print_largest(const std::vector<Flow>& flows) {
  std::vector<Flow> remote;
  std::copy_if(flows.begin(), flows.end(), std::back_inserter(remote),
               [](const Flow& f) { return f.source != f.target; });
  if (remote.empty()) return;
  const auto end = remote.begin() + static_cast<std::ptrdiff_t>(std::min(flows_shown, remote.size()));
  std::partial_sort(remote.begin(), end, remote.end(), [](const Flow& a, const Flow& b) {
    return std::tuple(b.bytes, a.target, a.source) < std::tuple(a.bytes, b.target, b.source);
  });
  fmt::print("  largest flows\n");
  for (auto flow = remote.begin(); flow != end; ++flow) {
    fmt::print("    source {} -> target {}: {}\n", to_int(flow->source), to_int(flow->target),
               human_bytes(static_cast<double>(flow->bytes)));
  }
}

}  // namespace

void JsonPieces::begin(bool with_pieces) {
  with_pieces_ = with_pieces;
  fmt::format_to(std::back_inserter(buffer_), "{{{}", with_pieces ? "\"pieces\":[" : "");
}

void JsonPieces::add(const Transfer& transfer) {
  if (last_ != &transfer.key) {
    last_key_ = fmt::format("\"fqn\":{},\"state\":{}", json_text(transfer.key.fqn), json_text(transfer.key.state));
    last_ = &transfer.key;
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
  std::fwrite(buffer_.data(), 1, buffer_.size(), stdout);
  buffer_.clear();
}

void print_gaps(std::span<const Gap> gaps) {
  fmt::print(stderr, "shardwire: layout_mismatch: {} wanted region{} no holder:\n", gaps.size(),
             gaps.size() == 1 ? " has" : "s have");
  for (const Gap& gap : gaps) {
    fmt::print(stderr, "  {} {} {} wanted by rank {}\n", printable(gap.fqn), printable(gap.state), to_string(gap.box),
               to_int(gap.target));
  }
}

void print_table(const Case& job, const JobTotals& totals, const std::optional<Relabelling>& relabelling,
                 const TableOptions& options) {
  const std::string lost = job.source.lost.empty() ? "" : fmt::format(" ({} lost)", job.source.lost.size());
  fmt::print("{}: {} tensors x {} states, {} source ranks{} -> {} target ranks\n", job.name.empty() ? "case" : job.name,
             job.tensors, job.states.size(), job.source.ranks, lost, job.target.ranks);
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
    print_spread("pieces", totals.targets, human_count, [](const TargetTotals& rank) { return rank.pieces; });
    print_spread("runs", totals.targets, human_count, [](const TargetTotals& rank) { return rank.runs; });
    print_spread("needed", totals.targets, human_bytes, [](const TargetTotals& rank) { return rank.needed; });
    print_spread("remote", totals.targets, human_bytes,
                 [](const TargetTotals& rank) { return rank.needed - rank.local; });
    const auto idle =
        std::count_if(totals.targets.begin(), totals.targets.end(), [](const auto& r) { return r.pieces == 0; });
    if (idle > 0) fmt::print("    {} target ranks want nothing and are left out of these\n", idle);
  }
  if (relabelling && options.labels) {
    fmt::print("  best assignment: target ranks {}\n", label_text(relabelling->labels, labels_shown));
  }
  if (!options.brief) print_largest(totals.flows);
}

void finish_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw std::runtime_error("cannot write to standard output");
}

}  // namespace shardwire::cli
