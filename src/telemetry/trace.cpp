// SPDX-License-Identifier: Apache-2.0
#include "telemetry/trace.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

#include "support/boot_id.hpp"
#include "support/descriptors.hpp"
#include "support/json_text.hpp"
#include "support/system_error.hpp"

namespace shardwire::telemetry {

namespace {

using std::chrono::nanoseconds;

constexpr std::size_t max_text_bytes = 1 << 20;  // of one write

void append(std::string& text, std::string_view more) {
  text += more;
}

template <typename Number>
requires std::is_arithmetic_v<Number>
void append(std::string& text, Number number) {
  char digits[32];
  text.append(digits, std::to_chars(std::begin(digits), std::end(digits), number).ptr);
}

void append(std::string& text, nanoseconds seconds) {
  constexpr std::int64_t second = 1'000'000'000;
  append(text, seconds.count() / second);
  const std::size_t point = text.size();
  append(text, second + seconds.count() % second);  // the 1 keeps the zeros behind it
  text[point] = '.';
}

void append_quoted(std::string& text, std::string_view of) {
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (!std::all_of(of.begin(), of.end(), is_plain)) return append(text, support::json_text(of));
  text += '"';
  text += of;
  text += '"';
}

void append(std::string& text, const Attribute& attribute) {
  text += ",\"";
  text += attribute.name;
  text += "\":";
  if (const auto* of = std::get_if<std::string_view>(&attribute.value)) return append_quoted(text, *of);
  if (const auto* number = std::get_if<std::int64_t>(&attribute.value)) return append(text, *number);
  const double real = std::get<double>(attribute.value);
  std::isfinite(real) ? append(text, real) : append(text, "null");
}

void write_at(int file, std::string_view text, std::size_t at) {
  while (!text.empty()) {
    const ssize_t wrote = ::pwrite(file, text.data(), text.size(), static_cast<off_t>(at));
    if (wrote < 0 && errno != EINTR) support::throw_errno("cannot be written");
    if (wrote <= 0) continue;
    text.remove_prefix(static_cast<std::size_t>(wrote));
    at += static_cast<std::size_t>(wrote);
  }
}

std::string last_lines(std::uint64_t dropped) {
  return fmt::format("\n],\"shardwire.spans.dropped\":{}}}\n", dropped);
}

}  // namespace

std::string trace_file_name(const std::string& name, int member) {
  const std::size_t folder = name.rfind('/');
  const std::size_t dot = name.rfind('.');
  const bool has_ending = dot != std::string::npos && (folder == std::string::npos || dot > folder + 1) && dot > 0;
  return fmt::format("{}-{}{}", name.substr(0, has_ending ? dot : name.size()), member,
                     has_ending ? name.substr(dot) : "");
}

/// Spans that wait for the thread, which makes their lines.
struct WaitingSpans {
  struct Group {
    std::size_t first_text = 0;  ///< the row, and then the attributes of the first span in JSON
    std::size_t row_bytes = 0;
    std::size_t attributes_bytes = 0;
    std::size_t first_span = 0;
    std::size_t spans = 0;
  };
  std::vector<Group> groups;
  std::vector<Span> spans;
  std::string texts;

  /// All or, without memory, nothing.
  void add(std::string_view row, const std::vector<Span>& more, const std::vector<Attribute>& attributes) {
    Group group{.first_text = texts.size(), .row_bytes = row.size(), .first_span = spans.size(), .spans = more.size()};
    texts += row;
    for (const Attribute& one : attributes) append(texts, one);
    group.attributes_bytes = texts.size() - group.first_text - row.size();
    spans.insert(spans.end(), more.begin(), more.end());
    groups.push_back(group);
  }
  [[nodiscard]] std::size_t bytes() const {
    return groups.size() * sizeof(Group) + spans.size() * sizeof(Span) + texts.size();
  }
  void clear() {
    groups.clear();
    spans.clear();
    texts.clear();
  }
};

/// State of the thread, which may outlive its Trace.
class Trace::File {
 public:
  File(Setup setup, std::function<void(const std::string& why)> failed)
      : setup_(std::move(setup)), text_(head()), failure_(std::move(failed)) {}

  void add(std::string_view row, const std::vector<Span>& spans, const std::vector<Attribute>& attributes);
  /// On its thread.
  void write();
  void fail(const std::string& why) {
    failure_.report(fmt::format("the trace is incomplete: {}: {}", setup_.path, why));
  }
  /// From now on add() keeps nothing, and fail() calls nothing.
  void end();

 private:
  struct Row {
    int number = 0;
    Span::Time free_from{};
  };

  bool open();
  void write_text();
  [[nodiscard]] std::uint64_t dropped() const;
  int row_for(std::string_view name, const Span& span);
  void put(const WaitingSpans::Group& group);
  void put(int row, const Span& span, std::string_view attributes);
  [[nodiscard]] std::int64_t microseconds(Span::Time time) const;
  [[nodiscard]] std::string head() const;

  const Setup setup_;
  // Of the thread, as all before failure_.
  support::Descriptor file_;
  WaitingSpans writing_;
  std::string text_;  // of those that were writing_
  std::size_t written_bytes_ = 0;
  std::uint64_t written_dropped_ = 0;
  std::map<std::string, std::vector<Row>, std::less<>> rows_;  // by name
  int rows_made_ = 0;
  FirstFailure failure_;
  mutable std::mutex mutex_;
  bool ended_ = false;  // guarded by mutex_, as all that follows
  WaitingSpans waiting_;
  std::uint64_t dropped_ = 0;  // spans
};

// The clocks of hosts are aligned by what member 0 says of the age of the session, or else by the time of day.
std::string Trace::File::head() const {
  const auto now = std::chrono::steady_clock::now();
  const nanoseconds day = std::chrono::system_clock::now().time_since_epoch() - (now - setup_.began);
  return fmt::format(
      R"({{"otherData":{{"shardwire.run.id":{},"shardwire.member":{},"shardwire.session":"{:016x}",)"
      R"("shardwire.session.began_ns":{},"shardwire.began_ns":{},"shardwire.began_unix_ns":{},"host.boot.id":{}}},)"
      R"("traceEvents":[)"
      "\n"
      R"({{"name":"process_name","ph":"M","pid":{},"tid":0,"args":{{"name":"member"}}}})",
      support::json_text(setup_.run_id), setup_.member, setup_.session,
      nanoseconds(setup_.session_began.time_since_epoch()).count(),
      nanoseconds(setup_.began.time_since_epoch()).count(), day.count(), support::json_text(support::boot_id()),
      setup_.member);
}

// Whole microseconds: a reader that rounds finds each span within the one around it.
std::int64_t Trace::File::microseconds(Span::Time time) const {
  return std::chrono::floor<std::chrono::microseconds>(time - setup_.began).count();
}

void Trace::File::add(std::string_view row, const std::vector<Span>& spans, const std::vector<Attribute>& attributes) {
  if (spans.empty()) return;
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  try {
    if (waiting_.bytes() < setup_.max_waiting_bytes) return waiting_.add(row, spans, attributes);
  } catch (const std::bad_alloc&) {
  }
  dropped_ += spans.size();
}

// Spans of one row lie in one another or apart.
int Trace::File::row_for(std::string_view name, const Span& span) {
  auto found = rows_.find(name);
  if (found == rows_.end()) found = rows_.try_emplace(std::string(name)).first;
  std::vector<Row>& rows = found->second;
  for (Row& row : rows) {
    if (row.free_from > span.began) continue;
    row.free_from = span.ended;
    return row.number;
  }
  rows.push_back({++rows_made_, span.ended});
  const std::string shown = rows.size() == 1 ? std::string(name) : fmt::format("{} ({})", name, rows.size());
  text_ += fmt::format(
      ",\n"
      R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})",
      setup_.member, rows_made_, support::json_text(shown));
  return rows_made_;
}

void Trace::File::put(const WaitingSpans::Group& group) {
  if (written_bytes_ + text_.size() >= setup_.max_file_bytes) {
    const std::lock_guard lock(mutex_);
    dropped_ += group.spans;
    return;
  }
  const Span* const spans = &writing_.spans[group.first_span];
  const auto texts = std::string_view(writing_.texts).substr(group.first_text);
  const int row = row_for(texts.substr(0, group.row_bytes), spans[0]);
  put(row, spans[0], texts.substr(group.row_bytes, group.attributes_bytes));
  for (std::size_t i = 1; i < group.spans; ++i) put(row, spans[i], "");
}

void Trace::File::put(int row, const Span& span, std::string_view attributes) {
  const std::int64_t began = microseconds(span.began);
  const auto event = [this](const auto&... parts) { (append(text_, parts), ...); };
  event(",\n{\"name\":\"", span.name, R"(","ph":"X","pid":)", setup_.member, R"(,"tid":)", row, R"(,"ts":)", began,
        R"(,"dur":)", microseconds(span.ended) - began, R"(,"args":{"seconds":)", nanoseconds(span.ended - span.began),
        attributes, "}}");
}

// False: the owner gave up while the folder hung, and a later session may write this file.
bool Trace::File::open() {
  file_.reset(::open(setup_.path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file_) support::throw_errno("cannot be opened");
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      file_.reset();
      return false;
    }
  }
  if (::ftruncate(file_.get(), 0) != 0 && errno != EINVAL) {  // EINVAL: a device
    support::throw_errno("cannot be emptied");
  }
  return true;
}

std::uint64_t Trace::File::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void Trace::File::write() {
  {
    const std::lock_guard lock(mutex_);
    std::swap(writing_, waiting_);
  }
  try {
    for (const WaitingSpans::Group& group : writing_.groups) {
      put(group);
      if (text_.size() >= max_text_bytes) write_text();
    }
    writing_.clear();
    write_text();
  } catch (const std::exception& error) {
    fail(error.what());
    // The file system is full, and has room for the last lines again.
    if (file_ && ::ftruncate(file_.get(), static_cast<off_t>(written_bytes_)) == 0) {
      const std::string last = last_lines(dropped());
      static_cast<void>(::pwrite(file_.get(), last.data(), last.size(), static_cast<off_t>(written_bytes_)) < 0);
    }
    file_.reset();
    writing_ = {};
    text_ = {};
    const std::lock_guard lock(mutex_);
    ended_ = true;
    waiting_ = {};
    written_dropped_ = dropped_;  // nothing is left to write
  }
}

// The last lines are written anew each time, in one call with what is new, so that a process that dies leaves a whole file.
void Trace::File::write_text() {
  const std::uint64_t dropped = this->dropped();
  if (text_.empty() && dropped == written_dropped_) return;
  const std::size_t bytes = text_.size();
  text_ += last_lines(dropped);
  if (file_ || open()) {
    write_at(file_.get(), text_, written_bytes_);
    written_bytes_ += bytes;
    written_dropped_ = dropped;
    if (dropped > 0) fail("there are more spans than it may have");
  }
  text_.clear();
}

void Trace::File::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  failure_.drop();
}

Trace::Trace(Setup setup, std::function<void(const std::string& why)> failed) {
  const auto interval = setup.interval, patience = setup.patience;
  file_ = std::make_shared<File>(std::move(setup), std::move(failed));
  thread_.emplace(interval, patience, [file = file_](bool) { file->write(); });
  if (thread_->runs()) return;
  file_->fail("no thread can be started");
  file_->end();
}

void Trace::add(std::string_view row, const std::vector<Span>& spans, const std::vector<Attribute>& attributes) {
  file_->add(row, spans, attributes);
}

void Trace::end() {
  thread_.reset();
  file_->end();
}

}  // namespace shardwire::telemetry
