// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/output.hpp"
#include "cli/usage.hpp"
#include "support/list_of.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

struct TraceMergeOptions {
  std::vector<std::string> files;
  std::string output;
};

/// The first line of a trace: whose it is, and what its clock shows.
struct TraceHead {
  std::string path;
  std::string host;  ///< its boot id. Processes of one host share a clock
  std::string session;
  std::int64_t member = 0;
  std::int64_t session_began_ns = 0;  ///< by that clock; late by at most the time that an answer of member 0 took
  std::int64_t began_ns = 0;          ///< by that clock: 0 of the time stamps
  std::int64_t began_unix_ns = 0;     ///< the same by the time of day
};

TraceHead read_head(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw UsageError(fmt::format("{}: cannot be read, or is empty", path));
  try {
    const Json head = parse_json(line + "]}");
    const Node data = Node(head, "").at("otherData");
    constexpr Extent most = std::numeric_limits<Extent>::max();
    const auto number = [&](const char* field) { return data.at(field).integer(-most, most); };
    TraceHead read{.path = path,
                   .host = data.at("host.boot.id").text(),
                   .session = data.at("shardwire.session").text(),
                   .member = number("shardwire.member"),
                   .session_began_ns = number("shardwire.session.began_ns"),
                   .began_ns = number("shardwire.began_ns"),
                   .began_unix_ns = number("shardwire.began_unix_ns")};
    if (read.host.empty()) read.host = path;
    return read;
  } catch (const CaseError& error) {
    throw UsageError(fmt::format("{}: this is no file of SHARDWIRE_TRACE: {}", path, error.what()));
  }
}

/// Tells when a time by the clock of one host was by that of the first file.
class Clocks {
 public:
  explicit Clocks(const std::vector<TraceHead>& heads) : first_(heads.front()) {
    for (const TraceHead& head : heads) {
      const auto [found, fresh] = session_began_.try_emplace({head.host, head.session}, head.session_began_ns);
      if (!fresh) found->second = std::min(found->second, head.session_began_ns);
    }
  }
  /// When the time stamps of this file are 0.
  [[nodiscard]] std::int64_t zero(const TraceHead& head) const {
    if (head.host == first_.host) return head.began_ns;
    if (head.session == first_.session) return head.began_ns + began(first_) - began(head);
    return head.began_unix_ns - first_.began_unix_ns + first_.began_ns;
  }

 private:
  [[nodiscard]] std::int64_t began(const TraceHead& head) const { return session_began_.at({head.host, head.session}); }

  const TraceHead& first_;
  std::map<std::pair<std::string, std::string>, std::int64_t> session_began_;  // by host and session; the earliest
};

/// The merged text: into a file, or to standard output.
class MergedTrace {
 public:
  explicit MergedTrace(const std::string& path) : path_(path) {
    if (!path.empty()) file_.open(path, std::ios::binary | std::ios::trunc);
    if (!path.empty() && !file_) throw UsageError(fmt::format("--output: {} cannot be opened", path));
    put(R"({"traceEvents":[)");
  }
  void add(const Json& event) {
    put((events_++ == 0 ? "\n" : ",\n") + event.dump());
    if (event.value("ph", "") == "X") ++spans_;
  }
  void finish() {
    put("\n]}\n");
    if (path_.empty()) return;
    file_.close();
    if (!file_) throw std::runtime_error(fmt::format("{} could not be written", path_));
  }
  [[nodiscard]] std::size_t spans() const { return spans_; }

 private:
  void put(std::string_view text) { path_.empty() ? write_output(text) : static_cast<void>(file_ << text); }

  const std::string path_;
  std::ofstream file_;
  std::size_t events_ = 0;
  std::size_t spans_ = 0;
};

// Each event has a line.
void add_events(const TraceHead& head, std::int64_t process, std::int64_t later_us, MergedTrace& merged) {
  std::ifstream file(head.path);
  std::string line;
  std::getline(file, line);
  for (std::size_t number = 2; std::getline(file, line); ++number) {
    if (line.starts_with("],")) {
      const Json last = Json::parse("{" + line.substr(2), nullptr, false);
      const auto dropped = last.is_object() ? last.value("shardwire.spans.dropped", 0U) : 0U;
      if (dropped > 0) {
        support::write_stderr("shardwire: {}: {} left out\n", head.path, support::counted(dropped, "span"));
      }
      return;
    }
    if (line.ends_with(',')) line.pop_back();
    Json event = Json::parse(line, nullptr, false);
    if (!event.is_object()) throw UsageError(fmt::format("{}: line {} is no event", head.path, number));
    event["pid"] = process;
    if (event.contains("ts")) event["ts"] = event["ts"].get<std::int64_t>() + later_us;
    merged.add(event);
  }
}

int merge_traces(const TraceMergeOptions& options) {
  std::vector<TraceHead> heads;
  for (const std::string& path : options.files) {
    heads.push_back(read_head(path));
    std::error_code none;
    if (!options.output.empty() && std::filesystem::equivalent(path, options.output, none)) {
      throw UsageError(fmt::format("--output: {} is one of the files to merge", options.output));
    }
  }
  const Clocks clocks(heads);
  std::int64_t first = clocks.zero(heads.front());
  for (const TraceHead& head : heads) first = std::min(first, clocks.zero(head));
  MergedTrace merged(options.output);
  std::set<std::int64_t> processes;
  std::set<std::string> hosts;
  for (const TraceHead& head : heads) {
    constexpr std::int64_t next_of_member = 1'000'000;  // of another session
    std::int64_t process = head.member;
    while (!processes.insert(process).second) process += next_of_member;
    hosts.insert(head.host);
    add_events(head, process, (clocks.zero(head) - first) / 1000, merged);
  }
  merged.finish();
  if (!options.output.empty()) {
    write_output(fmt::format("{} has {} of {} on {}\n", options.output, support::counted(merged.spans(), "span"),
                             support::counted(heads.size(), "member"), support::counted(hosts.size(), "host")));
  }
  return exit_done;
}

std::function<int()> declare_merge(CLI::App& app) {
  const auto options = std::make_shared<TraceMergeOptions>();  // owners: the parser and the run
  app.add_option("FILES", options->files, "traces that SHARDWIRE_TRACE has made")->required();
  app.add_option("--output", options->output, "write the trace to this file (default: standard output)")
      ->type_name(file_type);
  return [options] { return merge_traces(*options); };
}

constexpr Example merge_examples[] = {
    {"shardwire trace merge trace-*.json --output all.json", "one trace of all members, for https://ui.perfetto.dev"},
};
constexpr Command trace_actions[] = {
    {"merge", "Join the traces of several members into one, with their clocks aligned", merge_examples, declare_merge},
};

}  // namespace

std::function<int()> declare_trace(CLI::App& app) {
  const auto chosen = add_actions(app, trace_actions);
  return [chosen] {
    if (!*chosen) {
      throw UsageError(fmt::format("trace: {} is expected; see shardwire trace --help", names_of(trace_actions)));
    }
    return (*chosen)();
  };
}

}  // namespace shardwire::cli
