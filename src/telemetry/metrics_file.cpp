// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>

#include "support/descriptors.hpp"
#include "support/own_thread.hpp"
#include "support/system_error.hpp"

namespace shardwire::telemetry {

namespace {

constexpr std::chrono::seconds longest_silence(15);  // the age of the file tells whether its process lives
constexpr std::size_t max_run_id = 128;              // of a name that has at most 255 bytes

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
}

// Not by a stream of the C library: the exit of the process flushes these, and would wait for a folder that hangs.
void write_whole(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".tmp";
  support::Descriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) support::throw_errno("cannot be opened");
  while (!text.empty()) {
    const ssize_t wrote = ::write(file.get(), text.data(), text.size());
    if (wrote < 0 && errno != EINTR) support::throw_errno("cannot be written");
    if (wrote > 0) text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (::close(file.release()) != 0) support::throw_errno("cannot be written");
  if (std::rename(fresh.c_str(), path.c_str()) != 0) support::throw_errno("cannot be replaced");
}

}  // namespace

std::string metrics_file_name(std::string_view run_id, int member) {
  std::string name(run_id.substr(0, max_run_id));
  for (char& c : name) c = is_plain(c) ? c : '_';
  return fmt::format("shardwire-{}-{}.prom", name.empty() ? "default" : name, member);
}

/// State of the thread, which may outlive its MetricsFile.
class MetricsFile::Writer {
 public:
  Writer(Setup setup, std::shared_ptr<const Metrics> metrics, std::function<void(const std::string& why)> failed)
      : setup_(std::move(setup)),
        path_(fmt::format("{}/{}", setup_.folder, metrics_file_name(setup_.run_id, setup_.member))),
        metrics_(std::move(metrics)),
        failed_(std::move(failed)) {}

  /// On its thread, until end().
  void run() {
    auto wrote_at = std::chrono::steady_clock::now();
    write();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, setup_.interval, [this] { return ending_; })) {
      const auto now = std::chrono::steady_clock::now();
      if (metrics_->version() == written_ && now - wrote_at < longest_silence) continue;
      wrote_at = now;
      lock.unlock();
      write();
      lock.lock();
    }
    if (!given_up_) {
      lock.unlock();
      write();
      lock.lock();
    }
    done_ = true;
    changed_.notify_all();
  }
  /// Asks for the last write. Returns whether run() has ended; if not, it writes nothing more.
  bool end() {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    given_up_ = !changed_.wait_for(lock, setup_.patience, [this] { return done_; });
    failed_ = nullptr;
    return done_;
  }
  void fail(const char* why) {
    const std::lock_guard lock(mutex_);
    if (const auto failed = std::exchange(failed_, nullptr)) {
      failed(fmt::format("metrics are not written: {}: {}", path_, why));
    }
  }

 private:
  void write() {
    try {
      written_ = metrics_->version();
      write_whole(path_, metrics_->text(setup_.member, setup_.run_id));
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }

  const Setup setup_;
  const std::string path_;
  const std::shared_ptr<const Metrics> metrics_;  // owners: this and the session's operations
  std::uint64_t written_ = 0;                     // version
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(const std::string& why)> failed_;  // guarded by mutex_, as all that follows; null: was called
  bool ending_ = false;
  bool given_up_ = false;
  bool done_ = false;
};

MetricsFile::MetricsFile(Setup setup, std::shared_ptr<const Metrics> metrics,
                         std::function<void(const std::string& why)> failed)
    : writer_(std::make_shared<Writer>(std::move(setup), std::move(metrics), std::move(failed))) {
  try {
    thread_ = std::thread([writer = writer_] {
      support::begin_own_thread("shardwire file");
      writer->run();
    });
  } catch (const std::system_error& error) {
    writer_->fail(error.what());
  }
}

MetricsFile::~MetricsFile() {
  if (!thread_.joinable()) return;
  writer_->end() ? thread_.join() : thread_.detach();
}

}  // namespace shardwire::telemetry
