// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restore/binding.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"

namespace shardwire::restore {

/// The lease on a source's publication, and the requests to the source under it. Watches the link, counts unanswered
/// requests, and returns the lease.
/// Threads: loop thread only.
class SourceRequests {
 public:
  /// `failed`: receives refusals, wrong answers, and exceptions of callbacks; each names the source.
  /// Ownership: borrows the context and binding; the binding's record, tensors and link are read.
  SourceRequests(const SourceContext& context, const Binding& binding, std::string from, Callbacks::Failed failed);
  SourceRequests(const SourceRequests&) = delete;
  SourceRequests& operator=(const SourceRequests&) = delete;

  /// `ended` runs when the connection to the source has ended.
  void watch(std::function<void(const Error& reason)> ended);
  /// Takes a lease on this process's own publication. Errors: throws Error{withdrawn} if memory that is read was freed.
  void lease_own();
  /// `granted` runs when the source has granted the lease. A lease that comes after end() is returned.
  void ask_for_lease(std::function<void()> granted);

  /// Asks whether the publication is live, unless an answer is due anyway: any request shows a withdrawal. `then` runs
  /// on success. Requires: another process.
  void ask_if_live(std::function<void()> then);
  using Digests = std::function<void(const std::vector<Digest128>&)>;
  /// Receives blocks that differ from what the source has published. Without it, such an answer is a failure.
  using Corrupt = std::function<void(const std::vector<wire::RequestedBox>& blocks)>;
  void ask_for_digests(std::vector<wire::RequestedBox> boxes, Digests then, Corrupt corrupt = nullptr);
  /// Requests digests of blocks that were taken when they were published.
  void ask_for_blocks(std::vector<wire::BlockRequest::Range> ranges, Digests then);
  /// Requests payload. A failure answer is a failure, or runs `corrupt`, or `aborted` if the source's message channel is
  /// aborted, or the source cannot send over it any more.
  void ask_for_payload(wire::PackRequest request, std::function<void(const std::string& why)> aborted,
                       Corrupt corrupt = nullptr);

  /// Reads the generation word over its channel. Requires: the binding has a region with the word.
  void read_generation(std::function<void(bool live)> then);
  /// Returns the lease, if there is one, and asks whether the bytes were unchanged until now. `intact` runs if they
  /// were; otherwise it is a failure.
  void confirm(std::function<void()> intact);

  /// Takes no answer any more, and asks nothing more.
  void end();
  /// Returns the lease, and watches the link no more.
  void give_back();

  /// 0: there is none.
  [[nodiscard]] std::uint64_t lease() const { return lease_; }
  /// The source has granted a lease, and has sent its offers.
  [[nodiscard]] bool was_leased() const { return was_leased_; }
  /// Unanswered requests, except those for payload; none after end().
  [[nodiscard]] int unanswered() const { return count_.unanswered; }
  /// Changes with each answer.
  [[nodiscard]] std::uint64_t answered() const { return count_.answered(); }
  /// For further requests of the same source.
  [[nodiscard]] RequestCount& count() { return count_; }

 private:
  [[nodiscard]] Rank rank() const { return binding_.layout_rank; }
  void require_intact(bool intact) const;

  const SourceContext& context_;
  const Binding& binding_;
  std::string from_;  // name of the publication
  std::uint64_t lease_ = 0;
  std::uint64_t watcher_ = 0;
  RequestCount count_;
  bool was_leased_ = false;
  Callbacks callbacks_;
};

}  // namespace shardwire::restore
