// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/clock.hpp"
#include "shardwire/options.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// The gathers of this member: values go to the rendezvous, which returns all of them once all members have sent
/// theirs. It answers each request once, in the order of requests, also those that have timed out here.
/// Threads: loop thread only.
class Gathers {
 public:
  using Done = std::function<void(std::vector<Bytes>, std::exception_ptr)>;
  using Send = std::function<void(const wire::Message&)>;

  /// `members`: size of the job. `send` sends to the rendezvous.
  Gathers(Clock& clock, std::int32_t members, Send send) : clock_(clock), members_(members), send_(std::move(send)) {}

  /// Which values a gather waits for, and how long the value of a member counts. All members ask for the same.
  enum class Kind : std::uint8_t {
    stays,          ///< those of all members; a value that was sent counts until its member is lost
    while_waiting,  ///< those of all members, while they wait
    meeting,        ///< as while_waiting; once it is complete, no member counts as lost any more
    survivors,      ///< those of members that were not lost since the last meeting; others are empty
  };

  /// `done` runs once, at the latest a little after `timeout`. Returns a number for quit().
  std::uint64_t start(const std::string& name, const Bytes& value, Kind kind, Duration timeout, Done done);
  /// The timeout of a gather passes now. Does nothing if it has ended.
  void quit(std::uint64_t request);
  void receive(const wire::Gathered& gathered);
  void receive(const wire::GatherAbsent& absent);
  /// False if the failure does not concern a gather of this member.
  bool receive(const wire::Failure& failure);
  void end_all(const Error& error);
  /// That have no answer yet.
  [[nodiscard]] std::size_t count() const { return gathers_.size(); }

 private:
  struct Gather {
    std::string name;
    std::uint64_t request;
    Done done;  // empty once it has run: an answer may still come, and is not for the next gather of this name
    std::unique_ptr<Timer> timer;
    bool quitting = false;  // the rendezvous was asked for the missing members
  };

  std::vector<Gather>::iterator find(std::uint64_t request);
  void time_out(std::uint64_t request);
  void end(std::vector<Gather>::iterator gather, const std::vector<Bytes>& gathered, const std::exception_ptr& error);
  /// Ends the oldest gather of that name, if there is one.
  void answer(const std::string& name, const std::vector<Bytes>& gathered, const std::exception_ptr& error);

  Clock& clock_;
  std::int32_t members_;
  Send send_;
  std::vector<Gather> gathers_;
  std::uint64_t next_request_ = 1;
};

}  // namespace shardwire
