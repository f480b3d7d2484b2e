// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/completion.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// The session of a publication, as the caller's handle sees it.
/// Threads: the caller's.
class PublicationOwner {
 public:
  using State = detail::PublicationState;
  /// The end of a retirement. Its error, if any, names the readers that were left. Null: the session is closed.
  /// Owners: the caller and the retirement on the loop.
  using Retirement = std::shared_ptr<detail::Completion>;
  struct Update {
    const Catalog& held;
    std::int64_t step = 0;
    Snapshot snapshot = Snapshot::none;
    Duration timeout{};
  };

  /// Withdraws the publication. The retirement ends when it has no readers, or when `timeout` has passed.
  virtual Retirement retire(const std::shared_ptr<State>& publication, Duration timeout) = 0;
  /// Publishes the update in its place, and sets `fresh` as soon as peers can see it. The result is the retirement of
  /// the old one.
  virtual Retirement replace(const std::shared_ptr<State>& publication, const Update& update,
                             std::shared_ptr<State>& fresh) = 0;
  /// Blocks until the retirement has ended. An interruption of the wait ends its timeout.
  /// Errors: throws its error, the interruption, and Error{unsupported} if the loop's thread would have to wait.
  virtual void wait(const std::shared_ptr<State>& publication, const detail::Completion& retirement) = 0;
  /// As wait(), without interruption and errors. Does not wait on the loop's thread.
  virtual void wait_for_end(const detail::Completion& retirement) noexcept = 0;

 protected:
  ~PublicationOwner() = default;
};

}  // namespace shardwire
