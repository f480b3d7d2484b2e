// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "move/served_request.hpp"
#include "move/source_digests.hpp"

namespace shardwire::move {

/// The source's half of straight: each part leaves as a message of its own from where it lies, so the publication is in use
/// until the last has left.
/// Threads: the session's thread only.
class StraightSource {
 public:
  explicit StraightSource(SourceDigests& digests) : digests_(digests) {}

  /// Errors: throws Error{invalid_argument} for a box that does not lie in one piece, and as SourceDigests::take(); what is
  /// found out later is the answer.
  void send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest);
  /// To whom something of a publication (ServedRequest::publication()) is on its way.
  [[nodiscard]] std::set<std::uint64_t> readers_of(const void* publication) const;
  /// When this returns, nothing is sent through the endpoint any more. With `why`, requests that it was to serve are
  /// answered so.
  void cut_off(std::unique_ptr<transport::Endpoint> endpoint, const Error* why);

 private:
  struct Sending {                           // of one request
    std::shared_ptr<ServedRequest> request;  // owners: this and what has it served
    int messages = 0;
    bool failed = false;  // and the reader was told
  };
  using Key = std::pair<const transport::Endpoint*, std::uint64_t>;  // and the request's number

  void post(const std::shared_ptr<ServedRequest>& request, const std::vector<transport::ConstMemory>& parts,
            const std::vector<wire::BoxDigest>& digests);
  void sent(const Key& key, const transport::Outcome& outcome);

  SourceDigests& digests_;
  std::map<Key, Sending> under_way_;
};

}  // namespace shardwire::move
