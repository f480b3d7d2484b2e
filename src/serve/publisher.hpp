// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "runtime/clock.hpp"
#include "serve/leases.hpp"
#include "serve/publications.hpp"
#include "serve/serving.hpp"

namespace shardwire {

/// The source's side of a session: owns its publications, the leases on them and what serves their readers, and takes a
/// publication from publish() to the end of its last reader.
/// Threads: loop thread only.
class Publisher {
 public:
  using Publication = detail::PublicationState;

  /// `staging`, `own`: see Serving.
  Publisher(Clock& clock, const Fabrics& fabrics, MemoryTable& memory, AttachedSockets& sockets,
            memory::CopyQueue& copies, Serving::Staging staging, Readers::Own own);

  /// Errors: throws Error{invalid_argument} if a publication of that name is still live.
  void add(std::shared_ptr<Publication> publication) { publications_.add(std::move(publication)); }
  /// Null: there is none.
  [[nodiscard]] std::shared_ptr<Publication> live(const std::string& name) const { return publications_.live(name); }
  /// Withdraws the publication. Calls `retired` with the members that still hold leases: none, or those left after
  /// `timeout`, whose leases are then revoked. From then on nothing here reads the publication's memory.
  void retire(const std::shared_ptr<Publication>& publication, Duration timeout, Leases::Retired retired);
  /// Replaces the live publication of the same name by `fresh`; readers with a lease on the old one go on reading it.
  /// `retired` as in retire(). Errors: throws Error{invalid_argument} if `old` is not live; nothing changes then.
  void replace(const std::shared_ptr<Publication>& old, std::shared_ptr<Publication> fresh, Duration timeout,
               Leases::Retired retired);
  /// The timeout of a running retire() or replace() passes now.
  void end_retirement(const Publication& publication) { leases_.end_timeout(publication); }

  /// Takes a lease for a restore in this process. Errors: throws Error{invalid_argument} if it is not live any more.
  std::uint64_t lease_own(const Publication& publication);
  /// Returns whether the bytes were unchanged until now.
  bool release_own(std::uint64_t lease) { return leases_.release(lease); }

  [[nodiscard]] Serving& serving() { return serving_; }
  [[nodiscard]] const Leases& leases() const { return leases_; }

 private:
  Publications publications_;
  Leases leases_;
  Serving serving_;
};

}  // namespace shardwire
