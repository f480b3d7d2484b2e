// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "telemetry/metrics.hpp"

namespace shardwire::telemetry {

/// shardwire-<run id>-<member>.prom. A job without a run id is "default"; characters that are not for names of files become '_'.
std::string metrics_file_name(std::string_view run_id, int member);

/// Keeps a file with the metrics of one member: written at the start, by a thread of its own within a second of each change and
/// every 15 s, and at the end. Readers see the old file or the new one, never a part. The file stays.
/// Threads: any; used and destroyed by one at a time.
class MetricsFile {
 public:
  struct Setup {
    std::string folder;
    std::string run_id;
    int member = 0;
    std::chrono::milliseconds interval = std::chrono::seconds(1);  ///< between writes of changes
  };
  /// `failed`: receives, once, why the file cannot be written. Called by the constructor or on the thread.
  MetricsFile(Setup setup, std::shared_ptr<const Metrics> metrics, std::function<void(const std::string& why)> failed);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

 private:
  void run();
  void write();

  const Setup setup_;
  const std::string path_;
  const std::shared_ptr<const Metrics> metrics_;        // owners: this and the session's operations
  std::function<void(const std::string& why)> failed_;  // null: was called. Used by one thread at a time, as the next
  std::uint64_t written_ = 0;                           // version
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;  // guarded by mutex_
  std::thread thread_;   // not running: none could be started
};

}  // namespace shardwire::telemetry
