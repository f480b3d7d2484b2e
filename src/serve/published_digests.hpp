// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/blocks.hpp"
#include "support/digest128.hpp"

namespace shardwire {

/// Takes digests of the sources of these copies, in their order, and waits for them.
using DigestAndWait = std::function<std::vector<Digest128>(std::vector<memory::QueuedCopy> blocks)>;

/// Digests of the blocks of some tensors, by tensor of the manifest.
using BlockDigests = std::map<std::uint32_t, std::vector<Digest128>>;

/// Digests of the blocks of a publication, taken when it was published (PublishOptions::digest). Constant from then on.
struct PublishedDigests {
  struct Tensor {
    move::Blocks blocks;
    std::vector<Digest128> digests;  ///< by block
  };
  std::vector<Tensor> tensors;  ///< in the order of the manifest
};

}  // namespace shardwire
