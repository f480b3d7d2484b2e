// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace shardwire {

/// Bounds the state that this member keeps for one reader. A restore needs a few leases, and some requests in flight
/// for each; a reader beyond the bounds would keep this member from serving others.
/// Threads: loop thread only.
class ReaderLoad {
 public:
  struct Amount {
    std::size_t leases = 0;
    std::size_t tensors = 0;   ///< of the leases
    std::size_t boxes = 0;     ///< likewise
    std::size_t requests = 0;  ///< not answered yet
    std::size_t parts = 0;     ///< of these
  };
  /// Errors: throws Error{out_of_resources} if `more` exceeds the bounds.
  void check(const Amount& more) const;
  /// Errors: as check().
  void add(const Amount& more);
  void remove(const Amount& amount);

 private:
  Amount now_;
};

/// Charges leases or a request to their reader's load until it is destroyed.
class Charge {
 public:
  /// Charges nothing: leases of this process are not bounded.
  Charge() = default;
  /// Errors: as ReaderLoad::check().
  Charge(std::shared_ptr<ReaderLoad> load, const ReaderLoad::Amount& amount);
  ~Charge();
  Charge(Charge&& other) noexcept = default;
  Charge& operator=(Charge&& other) noexcept;

 private:
  std::shared_ptr<ReaderLoad> load_;  // owners: the table of readers and charges
  ReaderLoad::Amount amount_;
};

}  // namespace shardwire
