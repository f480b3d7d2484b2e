// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restore/context.hpp"
#include "restore/device_reach.hpp"
#include "restore/question.hpp"
#include "restore/source.hpp"
#include "runtime/clock.hpp"
#include "shardwire/paths.hpp"

namespace shardwire::restore {

/// Session::paths() on the loop: drives a Source for every member that publishes a name until it is bound over every
/// common fabric, under an empty lease, and reports the abilities of each endpoint.
/// Threads: loop thread only.
class PathSurvey final : public Question, private Source::Listener {
 public:
  using Done = std::function<void(std::vector<PeerPath>, const std::exception_ptr&)>;

  /// `done` runs once.
  PathSurvey(const Context& context, std::string from, Duration timeout, Done done);
  ~PathSurvey() override;

  void fabric_broke(const std::exception_ptr& error) override { fail(error); }

 private:
  struct Peer {
    wire::PublicationRecord record;
    std::unique_ptr<Source> source;  // null for this process itself
    bool resolved = false;
    std::string failure;
  };
  /// Devices of this process; empty if it uses none.
  struct Devices {
    std::vector<int> used;
    std::string out_of_reach;  // for people: devices that cannot access each other's memory
  };

  void on_bound(Source& source) override { resolve(source.index(), {}); }
  void on_lost(Source& source, const std::exception_ptr& error) override;
  void on_confirmed(Source&) override {}

  [[nodiscard]] std::vector<wire::PublicationRecord> publications() const;
  void look() override;
  void fail(const std::exception_ptr& error) override { end({}, error); }
  [[nodiscard]] bool answered() const override { return !done_; }
  void survey();
  void ask(std::size_t index);
  /// Ends the survey of this peer.
  void resolve(std::size_t index, const std::string& failure);
  void timed_out() override;
  void end(std::vector<PeerPath> paths, const std::exception_ptr& error);

  [[nodiscard]] std::vector<PeerPath> paths() const;
  [[nodiscard]] PeerPath path_of(const Peer& peer, const Devices& devices) const;
  [[nodiscard]] PeerPath path_of_own(const Peer& peer, const Devices& devices) const;

  Clock::Time deadline_;
  Done done_;                    // empty once it ran
  Catalog nothing_{Rank{0}, 1};  // is wanted
  TensorPlaces no_places_;
  DeviceReach reach_;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<Source>>
      replaced_;  // by a Source for a later publication; kept, because one of them may be the caller
  std::size_t pending_ = 0;
  bool surveying_ = false;
};

}  // namespace shardwire::restore
