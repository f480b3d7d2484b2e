// SPDX-License-Identifier: Apache-2.0
#include "telemetry/trace.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "support/boot_id.hpp"
#include "support/descriptors.hpp"
#include "support/json_text.hpp"
#include "support/system_error.hpp"

namespace shardwire::telemetry {

namespace {

using std::chrono::nanoseconds;

std::string value_text(const decltype(Attribute::value)& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return support::json_text(*text);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  const double real = std::get<double>(value);
  return std::isfinite(real) ? fmt::format("{}", real) : "null";
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

}  // namespace

std::string trace_file_name(const std::string& name, int member) {
  const std::size_t folder = name.rfind('/');
  const std::size_t dot = name.rfind('.');
  const bool has_ending = dot != std::string::npos && (folder == std::string::npos || dot > folder + 1) && dot > 0;
  return fmt::format("{}-{}{}", name.substr(0, has_ending ? dot : name.size()), member,
                     has_ending ? name.substr(dot) : "");
}

/// State of the thread, which may outlive its Trace.
class Trace::File {
 public:
  File(Setup setup, std::function<void(const std::string& why)> failed)
      : setup_(std::move(setup)), failure_(std::move(failed)), waiting_(head()), added_bytes_(waiting_.size()) {}

  void add(const std::string& row, const std::vector<Span>& spans);
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
  int row_for(const std::string& name, const Span& span);
  void put(std::string_view event);
  void put(int row, const Span& span);
  [[nodiscard]] std::int64_t microseconds(Span::Time time) const;
  [[nodiscard]] std::string head() const;

  const Setup setup_;
  // Of the thread, as the next two.
  support::Descriptor file_;
  std::size_t written_bytes_ = 0;
  std::uint64_t written_dropped_ = 0;
  FirstFailure failure_;
  std::mutex mutex_;
  bool ended_ = false;  // guarded by mutex_, as all that follows
  std::string waiting_;
  std::size_t added_bytes_ = 0;                   // in all
  std::uint64_t dropped_ = 0;                     // spans
  std::map<std::string, std::vector<Row>> rows_;  // by name
  int rows_made_ = 0;
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

void Trace::File::add(const std::string& row, const std::vector<Span>& spans) {
  if (spans.empty()) return;
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  if (waiting_.size() >= setup_.max_waiting_bytes || added_bytes_ >= setup_.max_file_bytes) {
    dropped_ += spans.size();
    return;
  }
  const std::size_t before = waiting_.size();
  const int number = row_for(row, spans.front());
  for (const Span& span : spans) put(number, span);
  added_bytes_ += waiting_.size() - before;
}

// Spans of one row lie in one another or apart.
int Trace::File::row_for(const std::string& name, const Span& span) {
  std::vector<Row>& rows = rows_[name];
  for (Row& row : rows) {
    if (row.free_from > span.began) continue;
    row.free_from = span.ended;
    return row.number;
  }
  rows.push_back({++rows_made_, span.ended});
  const std::string shown = rows.size() == 1 ? name : fmt::format("{} ({})", name, rows.size());
  put(fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", setup_.member,
                  rows_made_, support::json_text(shown)));
  return rows_made_;
}

void Trace::File::put(std::string_view event) {
  waiting_ += ",\n";
  waiting_ += event;
}

void Trace::File::put(int row, const Span& span) {
  const std::int64_t began = microseconds(span.began);
  std::string attributes =
      fmt::format(R"("seconds":{})", std::chrono::duration<double>(span.ended - span.began).count());
  for (const Attribute& one : span.attributes) {
    attributes += fmt::format(",{}:{}", support::json_text(one.name), value_text(one.value));
  }
  put(fmt::format(R"({{"name":{},"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
                  support::json_text(span.name), setup_.member, row, began, microseconds(span.ended) - began,
                  attributes));
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

// The last lines are written anew each time, in one call with what is new, so that a process that dies leaves a whole file.
void Trace::File::write() {
  std::string text;
  std::uint64_t dropped = 0;
  {
    const std::lock_guard lock(mutex_);
    text.swap(waiting_);
    dropped = dropped_;
  }
  if (text.empty() && dropped == written_dropped_) return;
  const std::string last = fmt::format("\n],\"shardwire.spans.dropped\":{}}}\n", dropped);
  try {
    if (!file_ && !open()) return;
    write_at(file_.get(), text + last, written_bytes_);
    written_bytes_ += text.size();
    written_dropped_ = dropped;
    if (dropped > 0) fail("there are more spans than it may have");
  } catch (const std::exception& error) {
    fail(error.what());
    // The file system is full, and has room for the last lines again.
    if (file_ && ::ftruncate(file_.get(), static_cast<off_t>(written_bytes_)) == 0) {
      static_cast<void>(::pwrite(file_.get(), last.data(), last.size(), static_cast<off_t>(written_bytes_)) < 0);
    }
    file_.reset();
    const std::lock_guard lock(mutex_);
    ended_ = true;
    waiting_ = {};
    written_dropped_ = dropped_;  // nothing is left to write
  }
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

void Trace::add(const std::string& row, const std::vector<Span>& spans) {
  file_->add(row, spans);
}

void Trace::end() {
  thread_.reset();
  file_->end();
}

}  // namespace shardwire::telemetry
