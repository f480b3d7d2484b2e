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

/// The source's half of zcopy: parts are sent from where they lie, each as its own message or all as one, so the
/// publication is in use until the last has been sent.
/// Threads: the session's thread only.
class ZcopySource {
 public:
  explicit ZcopySource(SourceDigests& digests) : digests_(digests) {}

  /// Errors: throws Error{invalid_argument} for a box that is not contiguous, and as SourceDigests::take(); later
  ///         errors are sent as the answer.
  void send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest);
  /// Sends all boxes as one gathered message; its digest covers all of them. Errors: throws Error{invalid_argument} for
  /// more ranges than the reader's path takes; else as send().
  void send_gathered(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest);
  /// The readers to which bytes of a publication (ServedRequest::publication()) are under way.
  [[nodiscard]] std::set<std::uint64_t> readers_of(const void* publication) const;
  /// After it returns, nothing is sent through the endpoint any more. With `why`, the requests that it was serving are
  /// answered with this error.
  void abort_connection(std::unique_ptr<transport::Endpoint> endpoint, const Error* why);

 private:
  struct Sending {                           // state of one request
    std::shared_ptr<ServedRequest> request;  // owners: this and the code that serves it
    std::shared_ptr<void> charge;            // see Message
    int messages = 0;
    bool failed = false;  // and the reader was informed
  };
  using Key = std::pair<const transport::Endpoint*, std::uint64_t>;  // and the request's number

  struct Message {
    std::vector<transport::ConstMemory> ranges;
    std::optional<Digest128> digest{};
    std::shared_ptr<void> charge{};  // charges the ranges to the reader. Owners: copies of this, and Sending
  };
  void post(const std::shared_ptr<ServedRequest>& request, const std::vector<Message>& messages);
  void sent(const Key& key, const transport::Outcome& outcome);

  std::shared_ptr<void> charge(std::uint64_t reader, std::size_t ranges);

  SourceDigests& digests_;
  std::map<std::uint64_t, std::shared_ptr<std::size_t>> ranges_;  // by reader; owners: this and charges
  std::map<Key, Sending> under_way_;
};

}  // namespace shardwire::move
