// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "control/membership.hpp"
#include "peers/link.hpp"

namespace shardwire {

/// The connections of this member, as a reader, to sources: one per process, kept while the session lives.
/// Threads: loop thread only.
class LinkTable {
 public:
  using Defer = std::function<void(std::function<void()>)>;

  /// Ownership: borrows all. `defer` runs a task in a later loop iteration.
  LinkTable(Loop& loop, const Fabrics& fabrics, const FabricTable& table, Membership& membership,
            const Identity& identity, Defer defer);

  /// The connection to a source, created if there is none and connected once the address arrives. Errors: throws
  /// Error{peer_lost}.
  std::shared_ptr<Link> link(const wire::PublicationRecord& record);
  /// Requests the addresses of these members that are unknown, so that links to them need no rendezvous later.
  void look_ahead(std::span<const wire::PublicationRecord> records);
  /// Connects the links that wait for these addresses.
  void receive(const wire::Addresses& addresses);
  /// Ends the links that wait for an address.
  void end_waiting(const Error& reason);
  /// A released publication that was read through a link; everything of a source if the name is empty.
  struct Gone {
    const Link* link = nullptr;  // for comparison only
    std::string publication;
  };
  /// Releases peers' memory that is no longer needed: of publications that were withdrawn or replaced a while ago, the
  /// oldest at once if they are too large together, and of lost sources. Returns the released items, and the time of
  /// the next call.
  std::pair<std::vector<Gone>, std::optional<Clock::Time>> sweep(Clock::Time now);
  /// Calls visit(const Link&) for every link.
  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& [key, link] : links_) {
      if (link) visit(std::as_const(*link));
    }
  }
  /// Sends a goodbye on every link.
  void leave();

 private:
  void look_up(const wire::PublicationRecord& record, const std::shared_ptr<Link>& link);
  void request_address(int member);
  void send_lookup();
  /// Connects the links that wait for this member's address, or ends them with `absent`.
  void connect_waiting(int member, const Error* absent);

  Loop& loop_;
  const Fabrics& fabrics_;
  const FabricTable& table_;
  Membership& membership_;
  const Identity& identity_;
  Defer defer_;
  // By member and epoch. Owners: this table and restores that read from the peer.
  std::map<std::pair<int, std::uint32_t>, std::shared_ptr<Link>> links_;
  // Members whose address was requested, with the links that wait for it in some epoch. Owners: the links' owners.
  std::map<int, std::vector<std::pair<std::uint32_t, std::weak_ptr<Link>>>> unresolved_;
  std::vector<std::int32_t> to_look_up_;
  std::map<std::pair<const Link*, std::string>, Clock::Time> idle_since_;
};

}  // namespace shardwire
