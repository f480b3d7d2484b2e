// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>

#include "support/descriptors.hpp"
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
class MetricsFile::File {
 public:
  File(Setup setup, std::shared_ptr<const Metrics> metrics, std::function<void(const std::string& why)> failed)
      : setup_(std::move(setup)),
        path_(fmt::format("{}/{}", setup_.folder, metrics_file_name(setup_.run_id, setup_.member))),
        metrics_(std::move(metrics)),
        failure_(std::move(failed)) {}

  /// On its thread.
  void write(bool regular) {
    const auto now = std::chrono::steady_clock::now();
    if (regular && metrics_->version() == written_ && now - wrote_at_ < longest_silence) return;
    wrote_at_ = now;
    try {
      written_ = metrics_->version();
      write_whole(path_, metrics_->text(setup_.member, setup_.run_id));
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
  void fail(const char* why) { failure_.report(fmt::format("metrics are not written: {}: {}", path_, why)); }
  /// From now on fail() calls nothing.
  void end() { failure_.drop(); }

 private:
  const Setup setup_;
  const std::string path_;
  const std::shared_ptr<const Metrics> metrics_;  // owners: this and the session's operations
  std::uint64_t written_ = 0;                     // version
  std::chrono::steady_clock::time_point wrote_at_;
  FirstFailure failure_;
};

MetricsFile::MetricsFile(Setup setup, std::shared_ptr<const Metrics> metrics,
                         std::function<void(const std::string& why)> failed) {
  const auto interval = setup.interval, patience = setup.patience;
  file_ = std::make_shared<File>(std::move(setup), std::move(metrics), std::move(failed));
  thread_.emplace(interval, patience, [file = file_](bool regular) { file->write(regular); });
  if (!thread_->runs()) file_->fail("no thread can be started");
}

MetricsFile::~MetricsFile() {
  thread_.reset();
  file_->end();
}

}  // namespace shardwire::telemetry
