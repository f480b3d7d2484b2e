// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "geometry/placed_boxes.hpp"
#include "serve/reader_load.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// The right of a reader to read tensors of a publication.
struct Lease {
  struct Tensor {
    std::uint32_t id = 0;
    bool whole = true;  ///< everything held of it
    PlacedBoxes boxes;  ///< otherwise these, for their index
  };
  std::uint64_t reader = 0;       ///< connection; 0: a restore of this process
  int member = 0;                 ///< for messages
  bool revoked = false;           ///< the publication's memory may have changed
  std::vector<Tensor> tensors{};  ///< ascending, each once
  Charge charge{};                ///< for its size
};

/// Checks the tensors and boxes that a reader requests under a lease. Errors: throws Error{invalid_argument} for
/// tensors that are not in the manifest, and for boxes that do not fit them or overlap.
std::vector<Lease::Tensor> leased_tensors(const wire::Lease& request, const Manifest& manifest);

bool covers(const Lease& lease, const wire::RequestedBox& part);

}  // namespace shardwire
