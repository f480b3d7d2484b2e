// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/loop.hpp"
#include "shardwire/options.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// The gathers of this member: values go to the rendezvous, which returns all of them once all members have sent
/// theirs.
/// Threads: loop thread only.
class Gathers {
 public:
  using Done = std::function<void(std::vector<Bytes>, std::exception_ptr)>;
  using Send = std::function<void(const wire::Message&)>;

  /// `send` sends to the rendezvous.
  Gathers(Loop& loop, Send send) : loop_(loop), send_(std::move(send)) {}

  /// `done` runs once, at the latest a little after `timeout`.
  void start(const std::string& name, const Bytes& value, Duration timeout, Done done);
  void receive(const wire::Gathered& gathered) { end(gathered.name, gathered.values, nullptr); }
  void receive(const wire::GatherAbsent& absent);
  /// False if the failure does not concern a gather of this member.
  bool receive(const wire::Failure& failure);
  void end_all(const Error& error);

 private:
  struct Gather {
    std::string name;
    std::uint64_t request;
    Done done;
    std::unique_ptr<Timer> timer;
    bool quitting = false;  // the rendezvous was asked for the missing members
  };

  std::vector<Gather>::iterator find(std::uint64_t request);
  void time_out(std::uint64_t request);
  void end(std::vector<Gather>::iterator gather, const std::vector<Bytes>& gathered, const std::exception_ptr& error);
  /// Ends every gather of that name, or only the timed-out ones.
  void end(const std::string& name, const std::vector<Bytes>& gathered, const std::exception_ptr& error,
           bool quitting_only = false);

  Loop& loop_;
  Send send_;
  std::vector<Gather> gathers_;
  std::uint64_t next_request_ = 1;
};

}  // namespace shardwire
