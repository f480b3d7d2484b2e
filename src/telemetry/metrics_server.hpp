// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "shardwire/options.hpp"

namespace shardwire::telemetry {

/// Serves the metrics of all members of this host at one port, by a thread of its own. Of the members that share a folder the first
/// listens; when it ends, another one does. Answers `GET /metrics` over HTTP/1.1, one request per connection, from files that
/// were written within a minute. Files change once a second at most, and are read as often.
/// Threads: any; used and destroyed by one at a time. Only the destructor waits for the folder, for at most `patience`. A thread
///          that waits longer owns what it uses, and ends once the folder answers; the port stays in use until then.
class MetricsServer {
 public:
  struct Setup {
    std::string folder;              ///< see MetricsFile
    std::string host = "127.0.0.1";  ///< numeric
    std::uint16_t port = 0;
    std::chrono::milliseconds interval =
        std::chrono::seconds(1);  ///< between two attempts to listen, and two reads of the files
    std::chrono::milliseconds patience = std::chrono::seconds(10);  ///< limit for each connection, and for the end
  };
  using Notice = std::function<void(LogLevel, const std::string& text)>;
  /// `notice`: receives when this member begins to serve, and once why it cannot. Called on the thread, never after the end.
  /// Errors: throws Error{out_of_resources}, std::system_error.
  MetricsServer(Setup setup, Notice notice);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  class Server;

  const std::shared_ptr<Server> server_;  // owners: this and its thread
  std::thread thread_;
};

}  // namespace shardwire::telemetry
