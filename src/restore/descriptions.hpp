// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "control/directory.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"

namespace shardwire::restore {

/// Manifests and values of publications by digest, kept for later restores while a member publishes them.
struct Metadata {
  using Values = std::vector<wire::NamedValue>;
  std::map<wire::Digest, std::shared_ptr<const Manifest>> manifests;  // owners: this, plans, and own publications
  std::map<wire::Digest, std::shared_ptr<const Values>> values;       // owners: this and plans

  /// Drops entries that no roster names, once there are many. Requires: no restore is fetching metadata.
  /// Cost: O(members) each time the number has doubled.
  void trim(const Directory& directory);

 private:
  std::size_t limit_ = 64;
};

/// Fetches unknown manifests and value lists of publications, from one holder after the other. Readers begin with
/// different holders, so that requests spread over the sources.
/// Threads: loop thread only.
class Descriptions {
 public:
  using Records = std::vector<wire::PublicationRecord>;
  struct Events {
    std::function<Records()> holders;                             ///< live publications that may describe themselves
    std::function<void()> described;                              ///< one more description has arrived
    std::function<void(const std::exception_ptr& error)> failed;  ///< no description will arrive
    /// No holder of a description is left, and one of them and this member cannot talk to each other. May throw, which
    /// makes it a failure.
    std::function<void(const Error& why)> refused{};
    std::function<void(SourceLink& link)> asked{};  ///< a description was requested over this link
  };

  /// A holder that has not answered for half of `notice` is joined by the next one, that one by another after half of the
  /// time, and so on: within `notice` all are asked. The first answer counts.
  Descriptions(const Context& context, Duration notice, Events events);
  ~Descriptions();
  Descriptions(const Descriptions&) = delete;
  Descriptions& operator=(const Descriptions&) = delete;

  /// Requests the unknown manifests of `records` and the unknown values of `with_values`; true if none is missing.
  /// Errors: throws Error{out_of_resources}, and Error{peer_lost} if no further information on the job can arrive.
  bool fetch(const Records& records, const Records& with_values);
  /// Whether none is missing.
  [[nodiscard]] bool knows(const Records& records, const Records& with_values) const;
  /// Layout ranks with unanswered requests; ascending.
  [[nodiscard]] std::vector<int> awaited() const;
  using Asked = std::set<std::pair<std::int32_t, std::uint32_t>>;  ///< members and their epochs
  /// Members that were joined by another one, and have not answered since.
  [[nodiscard]] const Asked& silent() const { return silent_; }
  /// Ignores further answers.
  void stop();

 private:
  /// One description under way.
  struct Fetch {
    wire::Digest digest;
    wire::Digest wire::PublicationRecord::*field;  // the digest's field in a publication
    Records holders;
    std::size_t attempt = 0;
    Asked tried;
    std::function<void(const Bytes&)> keep;
    bool over = false;               // it has arrived
    std::optional<Error> refused{};  // by a holder
    std::unique_ptr<Timer> patience{};
    Duration next_patience{};
  };
  template <typename Request, typename Reply>
  void ask_one(const std::shared_ptr<Fetch>& fetch);
  template <typename Request, typename Reply>
  void ask(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<SourceLink>& link,
           const wire::PublicationRecord& holder);
  bool find_more_holders(Fetch& fetch);

  template <typename Request, typename Reply>
  void ask_another_later(const std::shared_ptr<Fetch>& fetch, const wire::PublicationRecord& holder);

  const Context& context_;
  Duration notice_;
  Events events_;
  Callbacks callbacks_;
  Asked silent_;
  std::map<wire::Digest, int> asked_;                                           // layout rank asked for its description
  std::vector<std::pair<std::shared_ptr<SourceLink>, std::uint64_t>> watched_;  // links with requests
};

}  // namespace shardwire::restore
