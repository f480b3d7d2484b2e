// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "move/served_request.hpp"
#include "move/source_digests.hpp"

namespace shardwire::move {

/// The source's half of straight: parts leave from where they lie, each as a message of its own or all as one, so the publication is in use
/// until the last has left.
/// Threads: the session's thread only.
class StraightSource {
 public:
  explicit StraightSource(SourceDigests& digests) : digests_(digests) {}

  /// Errors: throws Error{invalid_argument} for a box that does not lie in one piece, and as SourceDigests::take(); what is
  /// found out later is the answer.
  void send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes,
            std::optional<memory::DigestKind> digest);
  /// All boxes as one message, gathered; its digest is that of theirs. Errors: throws Error{invalid_argument} for more ranges
  /// than the reader's path takes; else as send().
  void send_gathered(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes,
                     std::optional<memory::DigestKind> digest);
  /// To whom something of a publication (ServedRequest::publication()) is on its way.
  [[nodiscard]] std::set<std::uint64_t> readers_of(const void* publication) const;
  /// When this returns, nothing is sent through the endpoint any more. With `why`, requests that it was to serve are
  /// answered so.
  void cut_off(std::unique_ptr<transport::Endpoint> endpoint, const Error* why);

 private:
  struct Sending {                           // of one request
    std::shared_ptr<ServedRequest> request;  // owners: this and what has it served
    std::shared_ptr<void> charge;            // see Message
    int messages = 0;
    bool failed = false;  // and the reader was told
  };
  using Key = std::pair<const transport::Endpoint*, std::uint64_t>;  // and the request's number

  struct Message {
    std::vector<transport::ConstMemory> ranges;
    std::optional<wire::BoxDigest> digest{};
    std::shared_ptr<void> charge{};  // counts the ranges as the reader's. Owners: copies of this, and Sending
  };
  void post(const std::shared_ptr<ServedRequest>& request, const std::vector<Message>& messages);
  void sent(const Key& key, const transport::Outcome& outcome);

  std::shared_ptr<void> charge(std::uint64_t reader, std::size_t ranges);

  SourceDigests& digests_;
  std::map<std::uint64_t, std::shared_ptr<std::size_t>> ranges_;  // by reader; owners: this and charges
  std::map<Key, Sending> under_way_;
};

}  // namespace shardwire::move
