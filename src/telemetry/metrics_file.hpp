// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "telemetry/metrics.hpp"
#include "telemetry/writer_thread.hpp"

namespace shardwire::telemetry {

/// shardwire-<run id>-<member>.prom. A job without a run id is "default"; characters that are not for names of files become '_'.
std::string metrics_file_name(std::string_view run_id, int member);

/// Keeps a file with the metrics of one member. A thread of its own writes it: at the start, within a second of each change, every
/// 15 s, and at the end. Readers see the old file or the new one, never a part. The file stays.
/// Threads: any; used and destroyed by one at a time. Only the destructor waits for the folder, for at most `patience`. A write that
///          hangs longer is the last one: its thread owns what it uses, and ends once the folder answers.
class MetricsFile {
 public:
  struct Setup {
    std::string folder;
    std::string run_id;
    int member = 0;
    std::chrono::milliseconds interval = std::chrono::seconds(1);   ///< between writes of changes
    std::chrono::milliseconds patience = std::chrono::seconds(10);  ///< with the last write
  };
  /// `failed`: receives, once, why the file cannot be written. Called by the constructor or on the thread, never after the end.
  MetricsFile(Setup setup, std::shared_ptr<const Metrics> metrics, std::function<void(const std::string& why)> failed);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

 private:
  class File;

  std::shared_ptr<File> file_;  // owners: this and its thread
  std::optional<WriterThread> thread_;
};

}  // namespace shardwire::telemetry
