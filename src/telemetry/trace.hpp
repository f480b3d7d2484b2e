// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "telemetry/writer_thread.hpp"

namespace shardwire::telemetry {

/// One property of a span. Borrows its texts.
struct Attribute {
  std::string_view name;  ///< without characters that JSON escapes
  std::variant<std::string_view, std::int64_t, double> value;
};

/// Something that took time.
struct Span {
  using Time = std::chrono::steady_clock::time_point;
  std::string_view name;  ///< a constant, without characters that JSON escapes
  Time began{};
  Time ended{};
};

/// The file of one member: "trace.json" is "trace-3.json" of member 3.
std::string trace_file_name(const std::string& name, int member);

/// Keeps a file with the spans of one member, in the JSON format of Chrome's trace events, which Perfetto opens. A thread of its own
/// writes it: at the start, within a second of each span, and at the end. The file is whole after each write.
/// Threads: any. Only end() waits for the folder, for at most `patience`. A write that hangs longer is the last one: its thread owns
///          what it uses, and ends once the folder answers.
class Trace {
 public:
  struct Setup {
    std::string path;
    std::string run_id;
    int member = 0;
    std::uint64_t session = 0;  ///< its number, the same for all members
    Span::Time session_began{};
    Span::Time began{};                                             ///< no span begins earlier
    std::chrono::milliseconds interval = std::chrono::seconds(1);   ///< between writes
    std::chrono::milliseconds patience = std::chrono::seconds(10);  ///< with the last write
    std::size_t max_waiting_bytes = 16 << 20;                       ///< of spans that are not written yet
    std::size_t max_file_bytes = 256 << 20;
  };
  /// `failed`: receives, once, why the file lacks spans. Called by the constructor or on the thread, never after the end.
  Trace(Setup setup, std::function<void(const std::string& why)> failed);
  ~Trace() { end(); }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Adds spans to a row with this name. The first contains the others, each of which contains, or is disjoint from, those that
  /// follow it. Groups that overlap get rows of their own. Never waits for the file. Beyond the limits, and without memory, it
  /// only counts the spans. `attributes`: of the first span.
  void add(std::string_view row, const std::vector<Span>& spans, const std::vector<Attribute>& attributes = {});
  /// Writes what has been added, and no more from now on.
  void end();

 private:
  class File;

  std::shared_ptr<File> file_;  // owners: this and its thread
  std::optional<WriterThread> thread_;
};

}  // namespace shardwire::telemetry
