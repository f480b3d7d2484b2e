// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "perf/measure/processes.hpp"
#include "shardwire/session.hpp"

namespace shardwire::perf {

/// A barrier of all members between turns.
class Meeting {
 public:
  virtual ~Meeting() = default;
  virtual void meet() = 0;
};

/// In shared memory: no traffic on any fabric, so measurements are not disturbed.
class BarrierMeeting : public Meeting {
 public:
  explicit BarrierMeeting(Barrier& barrier) : barrier_(barrier) {}
  void meet() override { barrier_.wait(); }

 private:
  Barrier& barrier_;
};

/// By messages of the session's control plane: for members that a launcher has started, on any hosts.
class SessionMeeting : public Meeting {
 public:
  SessionMeeting(Session& session, std::chrono::seconds patience) : session_(session), patience_(patience) {}
  void meet() override { session_.gather("turn " + std::to_string(turn_++), {}, patience_); }

 private:
  Session& session_;
  std::chrono::seconds patience_;
  std::uint64_t turn_ = 0;
};

}  // namespace shardwire::perf
