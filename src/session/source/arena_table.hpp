// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "shardwire/memory.hpp"
#include "support/fork.hpp"
#include "transport/transport.hpp"

namespace shardwire {

namespace detail {

/// Memory behind an Arena. Keeps the fabric alive: regions have to go first.
class SHARDWIRE_LOCAL ArenaState {
 public:
  ArenaState(std::shared_ptr<transport::Fabric> fabric, std::unique_ptr<transport::Region> region);
  ~ArenaState();
  ArenaState(const ArenaState&) = delete;
  ArenaState& operator=(const ArenaState&) = delete;
  [[nodiscard]] transport::Region& region() const { return *region_; }

 private:
  std::shared_ptr<transport::Fabric> fabric_;  // owners: the session and every arena made from it
  std::unique_ptr<transport::Region> region_;
  support::OwningProcess owner_;
};

}  // namespace detail

/// The arenas of one session by address.
/// Threads: any.
class ArenaTable {
 public:
  explicit ArenaTable(std::shared_ptr<transport::Fabric> fabric) : fabric_(std::move(fabric)) {}

  std::shared_ptr<detail::ArenaState> allocate(ByteCount bytes);
  /// The arena that holds all of [data, data + bytes), if there is one.
  [[nodiscard]] std::shared_ptr<detail::ArenaState> find(const void* data, ByteCount bytes) const;

  struct Registration {
    ByteCount bytes = 0;
    double seconds = 0;
  };
  /// All that was allocated in this session so far.
  [[nodiscard]] Registration registration() const;

 private:
  std::shared_ptr<transport::Fabric> fabric_;  // owners: see ArenaState
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<detail::ArenaState>> by_address_;  // guarded by mutex_
  Registration registration_;                                                 // guarded by mutex_
};

}  // namespace shardwire
