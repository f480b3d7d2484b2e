// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "restore/callbacks.hpp"
#include "restore/services.hpp"

namespace shardwire::restore {

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
  };

  Descriptions(Services& services, Events events);
  ~Descriptions();
  Descriptions(const Descriptions&) = delete;
  Descriptions& operator=(const Descriptions&) = delete;

  /// Requests the unknown manifests of `records` and the unknown values of `with_values`; true if none is missing.
  /// Errors: throws Error{out_of_resources}, and Error{peer_lost} if no further information on the job can arrive.
  bool fetch(const Records& records, const Records& with_values);
  /// Layout ranks with unanswered requests; ascending.
  [[nodiscard]] std::vector<int> awaited() const;
  /// Ignores further answers.
  void stop();

 private:
  /// One description under way.
  struct Fetch {
    wire::Digest digest;
    wire::Digest wire::PublicationRecord::*field;  // the digest's field in a publication
    Records holders;
    std::size_t attempt = 0;
    std::set<std::pair<std::int32_t, std::uint32_t>> tried;  // members and their epochs
    std::function<void(const Bytes&)> keep;
  };
  template <typename Request, typename Reply>
  void ask_one(const std::shared_ptr<Fetch>& fetch);
  template <typename Request, typename Reply>
  void ask(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<SourceLink>& link, int layout_rank);
  bool find_more_holders(Fetch& fetch);

  Services& services_;
  Events events_;
  Callbacks callbacks_;
  std::map<wire::Digest, int> asked_;                                           // layout rank asked for its description
  std::vector<std::pair<std::shared_ptr<SourceLink>, std::uint64_t>> watched_;  // links with requests
};

}  // namespace shardwire::restore
