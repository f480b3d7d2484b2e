// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "session/source/publication.hpp"

namespace shardwire {

/// What one reader has this member keep, within bounds. Its own restores need a few leases, and some requests in flight for
/// each; what is beyond is a reader that would keep this member from serving others.
/// Threads: loop thread only.
class ReaderLoad {
 public:
  /// Errors: throws Error{out_of_resources} when another lease on so much would be too much.
  void check_lease(std::size_t tensors, std::size_t boxes) const;
  /// Errors: as check_lease().
  void add_lease(const detail::Lease& lease);
  void remove_lease(const detail::Lease& lease);

 private:
  friend class Charge;
  std::size_t leases_ = 0;
  std::size_t tensors_ = 0;   // of its leases
  std::size_t boxes_ = 0;     // likewise
  std::size_t requests_ = 0;  // not answered yet
  std::size_t parts_ = 0;     // of these
};

/// One request against the load of its reader, until it is answered.
class Charge {
 public:
  /// Errors: throws Error{out_of_resources} when it is too much.
  Charge(std::shared_ptr<ReaderLoad> load, std::size_t parts);
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  std::shared_ptr<ReaderLoad> load_;  // owners: the table of readers and charges
  std::size_t parts_;
};

}  // namespace shardwire
