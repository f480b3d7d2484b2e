// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics_file.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

#include "support/system_error.hpp"

namespace shardwire::telemetry {

namespace {

constexpr std::chrono::seconds longest_silence(15);  // the age of the file tells whether its process lives
constexpr std::size_t max_run_id = 128;              // of a name that has at most 255 bytes

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".tmp";
  std::FILE* const file = std::fopen(fresh.c_str(), "we");
  if (file == nullptr) support::throw_errno("cannot be opened");
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int why = errno;
  if (std::fclose(file) != 0) support::throw_errno("cannot be written");
  if (!wrote) throw std::system_error(why, std::generic_category(), "cannot be written");
  if (std::rename(fresh.c_str(), path.c_str()) != 0) support::throw_errno("cannot be replaced");
}

}  // namespace

std::string metrics_file_name(std::string_view run_id, int member) {
  std::string name(run_id.substr(0, max_run_id));
  for (char& c : name) c = is_plain(c) ? c : '_';
  return fmt::format("shardwire-{}-{}.prom", name.empty() ? "default" : name, member);
}

MetricsFile::MetricsFile(Setup setup, std::shared_ptr<const Metrics> metrics,
                         std::function<void(const std::string& why)> failed)
    : setup_(std::move(setup)),
      path_(fmt::format("{}/{}", setup_.folder, metrics_file_name(setup_.run_id, setup_.member))),
      metrics_(std::move(metrics)),
      failed_(std::move(failed)) {
  write();
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // it is then written at the end alone
  }
}

MetricsFile::~MetricsFile() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  if (thread_.joinable()) thread_.join();
  write();
}

void MetricsFile::run() {
  ::pthread_setname_np(::pthread_self(), "shardwire file");
  sigset_t all;  // signals are for the embedding program's threads
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&all, own);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  auto wrote_at = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, setup_.interval, [this] { return ending_; })) {
    const auto now = std::chrono::steady_clock::now();
    if (metrics_->version() == written_ && now - wrote_at < longest_silence) continue;
    wrote_at = now;
    lock.unlock();
    write();
    lock.lock();
  }
}

void MetricsFile::write() {
  try {
    written_ = metrics_->version();
    write_whole(path_, metrics_->text(setup_.member, setup_.run_id));
  } catch (const std::exception& error) {
    if (const auto failed = std::exchange(failed_, nullptr)) {
      failed(fmt::format("metrics are not written: {}: {}", path_, error.what()));
    }
  }
}

}  // namespace shardwire::telemetry
