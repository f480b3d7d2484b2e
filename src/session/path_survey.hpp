// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "session/core.hpp"
#include "shardwire/paths.hpp"

namespace shardwire {

/// Session::paths() on the loop: connects to everybody who publishes a name as a restore would, over every fabric that both
/// have, under a lease on nothing, and asks each endpoint what it can do.
/// Threads: loop thread only.
class PathSurvey final : public RunningRestore {
 public:
  using Done = std::function<void(std::vector<PeerPath>, const std::exception_ptr&)>;

  /// `done` runs once.
  PathSurvey(Core& core, std::string from, Duration timeout, Done done);
  ~PathSurvey() override;

  void start() override;
  void directory_changed() override;
  bool payload(const wire::PayloadHeader&, transport::Incoming&) override { return false; }
  void caller_failed(const std::exception_ptr& error) override { end({}, error); }
  void fabric_broke(const std::exception_ptr& error) override { end({}, error); }
  void stop_writing() override {}
  [[nodiscard]] bool written() const override { return true; }
  void abandon() override;

 private:
  struct Peer {
    wire::PublicationRecord record;
    std::shared_ptr<Link> link;  // owners: see LinkTable; null for this process itself
    std::uint64_t watcher = 0;
    std::uint64_t lease = 0;
    std::vector<std::size_t> candidates;  // fabrics that are still to be connected
    std::vector<ConnectedFabric> connected;
    std::map<std::size_t, std::string> failed;  // fabrics that could not be, and why
    bool settled = false;
    std::string why_not;
  };
  /// Those of this process; none: it has no use for any.
  struct Devices {
    std::vector<int> used;
    std::string out_of_reach;  // for people: which of them do not access memory of which others
  };

  [[nodiscard]] std::vector<wire::PublicationRecord> publications() const;
  void survey();
  void lease_from(std::size_t index);
  void leased(std::size_t index, const wire::Message& reply);
  void connect_next(std::size_t index);
  void bind_over(std::size_t index, std::size_t fabric);
  void bound_over(std::size_t index, std::size_t fabric, const wire::Message& reply);
  /// Nothing more will be known of this peer.
  void settle(std::size_t index, const std::string& why_not);
  void timed_out();
  void end(std::vector<PeerPath> paths, const std::exception_ptr& error);

  [[nodiscard]] std::vector<PeerPath> paths() const;
  [[nodiscard]] PeerPath path_of(const Peer& peer, const Devices& devices) const;

  /// `body` as a callback for this peer: does nothing once it is settled, and what it throws settles it.
  template <typename Body>
  auto for_peer(std::size_t index, Body body);

  Core& core_;
  std::string from_;
  Duration timeout_;
  Done done_;  // empty once it ran
  Timer timer_;
  std::vector<Peer> peers_;
  std::size_t pending_ = 0;
  bool surveying_ = false;
  std::uint64_t next_request_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this; callbacks hold weak ones
};

}  // namespace shardwire
