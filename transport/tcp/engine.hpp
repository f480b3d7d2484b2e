// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "transport/transport.hpp"

namespace shardwire::transport::tcp {

class Connection;
class Stream;

/// State shared by all connections of a fabric: the wake-up descriptor, the order of turns, and completions to be run.
/// Owners: the fabric and its endpoints, destroyed in any order.
class Engine {
 public:
  /// Errors: throws Error{out_of_resources}.
  Engine();
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] int descriptor() const { return epoll_.get(); }
  bool arm();
  bool progress();
  /// Closes all connections and drops all completions: the fabric is gone.
  void close(WallClock::time_point until);

  // Called by connections.
  void add(std::shared_ptr<Connection> connection);
  /// Stops watching the connection.
  void remove(const Connection& connection);
  void watch(Stream& stream);
  void unwatch(const Stream& stream);
  /// Ends the connection when its grace period is over.
  void await_end(Connection& connection);
  /// The connection has work for the next progress().
  void wake(Connection& connection);
  /// Ends an operation in the next progress(). A send's completion is dropped if its endpoint is gone by then.
  void finish(Completion done, Outcome outcome, std::shared_ptr<Connection> sender = nullptr);
  /// For bytes to be dropped.
  std::span<std::byte> scratch() { return *scratch_; }

  MessageHandler handler;

 private:
  struct Finished {
    Completion done;
    Outcome outcome;
    std::shared_ptr<Connection> sender;
  };
  class Turn;

  void take_events();
  void end_overdue();

  support::Descriptor epoll_;
  support::Descriptor timer_;
  std::unique_ptr<std::array<std::byte, 64 * 1024>> scratch_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Connection>> ending_;
  std::deque<std::shared_ptr<Connection>> ready_;
  std::deque<Finished> finished_;
};

}  // namespace shardwire::transport::tcp
