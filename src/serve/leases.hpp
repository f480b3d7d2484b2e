// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/clock.hpp"
#include "serve/lease.hpp"
#include "serve/publication.hpp"

namespace shardwire {

/// The leases of readers on a publication's memory, and the reads that this member makes for them. A
/// publication that is retired waits here until both have ended.
/// Threads: loop thread only.
class Leases {
 public:
  using Publication = detail::PublicationState;
  /// Receives the members that still hold leases, without duplicates.
  using Retired = std::function<void(std::vector<int> members)>;
  /// Aborts the reads of a publication that wait for readers.
  using AbortReads = std::function<void(const Publication& publication)>;

  /// `abort_reads` runs when the time of retire() is up, after the leases were revoked.
  Leases(Clock& clock, AbortReads abort_reads) : clock_(clock), abort_reads_(std::move(abort_reads)) {}
  /// Ends all calls of retire().
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  /// Returns the number of the lease.
  std::uint64_t grant(const std::shared_ptr<Publication>& publication, Lease lease);
  struct Held {
    std::shared_ptr<Publication> publication;  // owners: see Publication handle
    const Lease* lease = nullptr;
  };
  /// Errors: throws Error{invalid_argument} for a lease that the reader does not hold, Error{withdrawn} for one that is
  /// revoked.
  [[nodiscard]] Held held(std::uint64_t number, std::uint64_t reader) const;
  /// As held(), also true for a revoked lease, and without an error.
  [[nodiscard]] bool holds(std::uint64_t reader, std::uint64_t number) const;
  /// Returns whether the bytes were unchanged until now: false for a lease that was revoked, or does not exist.
  bool release(std::uint64_t number);
  /// The reader has gone.
  void release_all(std::uint64_t reader);

  /// This member reads the memory from begin_read() until as many end_read() calls.
  void begin_read(const std::shared_ptr<Publication>& publication);
  void end_read(const std::shared_ptr<Publication>& publication);

  /// Waits until no lease and no read is left, or for `timeout`; then revokes the leases and waits for reads only.
  /// Withdraws memory that fabrics have adopted for this publication, and runs `retired`, once. From then on nothing
  /// here reads the publication's memory.
  /// Requires: no lease on it is granted any more.
  void retire(const std::shared_ptr<Publication>& publication, Duration timeout, Retired retired);
  /// The timeout of retire() passes now. Does nothing if the publication is not being retired.
  void end_timeout(const Publication& publication);

  /// Leases that readers hold, revoked ones included.
  [[nodiscard]] std::size_t count() const { return by_lease_.size(); }
  /// Reads that have begun and not ended.
  [[nodiscard]] std::size_t reads() const;

 private:
  /// Of one publication, while it is read or retired.
  struct Use {
    std::shared_ptr<Publication> publication{};  // owners: see Publication handle
    std::map<std::uint64_t, Lease> leases{};
    int reads = 0;
    Retired retired{};  // empty: not retired, or done
    std::optional<Timer> timer{};
    bool expired = false;
  };
  Use& use_of(const std::shared_ptr<Publication>& publication);
  void expire(const Publication* publication);
  /// Finishes retire() if its time has come, and forgets a publication that is out of use.
  void look_at(const Publication* publication);

  Clock& clock_;
  AbortReads abort_reads_;
  std::map<const Publication*, Use> uses_;
  std::map<std::uint64_t, Use*> by_lease_;
  std::uint64_t next_lease_ = 1;
};

}  // namespace shardwire
