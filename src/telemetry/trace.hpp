// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "telemetry/writer_thread.hpp"

namespace shardwire::telemetry {

/// One property of a span.
struct Attribute {
  /// `of`: text, a whole number or a real one.
  template <typename Value>
  Attribute(std::string_view key, Value of) : name(key), value(std::move(of)) {}

  std::string_view name;  ///< a constant
  std::variant<std::string, std::int64_t, double> value;
};

/// Something that took time.
struct Span {
  using Time = std::chrono::steady_clock::time_point;
  std::string name;
  Time began{};
  Time ended{};
  std::vector<Attribute> attributes{};
};

/// The file of one member: "trace.json" is "trace-3.json" of member 3.
std::string trace_file_name(const std::string& name, int member);

/// Keeps a file with the spans of one member, in the JSON format of Chrome's trace events, which Perfetto opens. The file is whole
/// after each write: at the start, by a thread of its own within a second of each span, and at the end.
/// Threads: any.
class Trace {
 public:
  struct Setup {
    std::string path;
    std::string run_id;
    int member = 0;
    std::uint64_t session = 0;  ///< its number, the same for all members
    Span::Time session_began{};
    Span::Time began{};                                            ///< no span begins earlier
    std::chrono::milliseconds interval = std::chrono::seconds(1);  ///< between writes
    std::size_t max_waiting_bytes = 16 << 20;                      ///< of spans that are not written yet
    std::size_t max_file_bytes = 256 << 20;
  };
  /// `failed`: receives, once, why the file lacks spans. Called by the constructor, by end() or on the thread of the file.
  Trace(Setup setup, std::function<void(const std::string& why)> failed);
  ~Trace() { end(); }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Adds spans to a row with this name. The first contains the others, each of which contains, or is disjoint from, those that
  /// follow it. Groups that overlap get rows of their own. Never waits for the file. Beyond the limits it only counts the
  /// spans.
  void add(const std::string& row, const std::vector<Span>& spans);
  /// Writes what has been added, and no more from now on.
  void end();

 private:
  struct Row {
    int number = 0;
    Span::Time free_from{};
  };

  int row_for(const std::string& name, const Span& span);
  void put(std::string_view event);
  void put(int row, const Span& span);
  [[nodiscard]] std::int64_t microseconds(Span::Time time) const;
  [[nodiscard]] std::string head() const;
  void write();
  void close();
  void report(const std::string& why);

  const Setup setup_;
  // Used by one thread at a time, as the next three.
  std::function<void(const std::string& why)> failed_;  // null: was called
  int file_ = -1;
  std::size_t written_bytes_ = 0;
  std::uint64_t written_dropped_ = 0;
  std::mutex mutex_;
  bool ended_ = false;  // guarded by mutex_, as all that follows but the thread
  std::string waiting_;
  std::size_t added_bytes_ = 0;                   // in all
  std::uint64_t dropped_ = 0;                     // spans
  std::map<std::string, std::vector<Row>> rows_;  // by name
  int rows_made_ = 0;
  std::optional<WriterThread> thread_;
};

}  // namespace shardwire::telemetry
