// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "session/control/link.hpp"
#include "session/control/membership.hpp"

namespace shardwire {

/// The connections of this member, as a reader, to sources: one per process, kept while the session lives.
/// Threads: loop thread only.
class LinkTable {
 public:
  using Defer = std::function<void(std::function<void()>)>;
  using Clock = std::chrono::steady_clock;

  /// Ownership: borrows all. `defer` runs a task on a later turn of the loop.
  LinkTable(Loop& loop, const Fabrics& fabrics, Membership& membership, const Identity& identity, Defer defer);

  /// The connection to a source, made when there is none, once its address has come. Errors: throws Error{peer_lost}.
  std::shared_ptr<Link> link(const wire::PublicationRecord& record);
  /// Connects the links that wait for these addresses.
  void receive(const wire::Addresses& addresses);
  /// Ends the links that wait for an address.
  void end_waiting(const Error& reason);
  /// What has gone: a publication that was read through a link, or everything of a source where the name is empty.
  struct Gone {
    const Link* link = nullptr;  // to be compared only
    std::string publication;
  };
  /// Gives back the memory of peers that is of no more use: of publications that were withdrawn or replaced a while ago,
  /// the oldest at once where they are too large together, and of sources that are lost. Returns what it was, and when to
  /// be called again.
  std::pair<std::vector<Gone>, std::optional<Clock::time_point>> sweep(Clock::time_point now);
  /// Says goodbye to all.
  void leave();

 private:
  void look_up(const wire::PublicationRecord& record, const std::shared_ptr<Link>& link);
  void send_lookup();
  /// Connects the links that wait for this member's address, or ends them when it is `absent`.
  void connect_waiting(int member, const Error* absent);

  Loop& loop_;
  const Fabrics& fabrics_;
  Membership& membership_;
  const Identity& identity_;
  Defer defer_;
  // By member and turn. Owners: this table and restores that read from the peer.
  std::map<std::pair<int, std::uint32_t>, std::shared_ptr<Link>> links_;
  // Links that wait for the address of a member in some turn. Owners: the links' owners.
  std::map<int, std::vector<std::pair<std::uint32_t, std::weak_ptr<Link>>>> unresolved_;
  std::vector<std::int32_t> to_look_up_;
  std::map<std::pair<const Link*, std::string>, Clock::time_point> idle_since_;
};

}  // namespace shardwire
