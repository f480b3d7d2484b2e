// SPDX-License-Identifier: Apache-2.0
#include "restore/probe.hpp"

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"

namespace shardwire::restore {

Digest128 flip_bit(const move::TransferPart& part) {
  const move::Transfer& transfer = *part.transfer;
  const memory::StridedCopy place(part.box, transfer.wanted, memory::packed(part.box), transfer.item_bytes);
  transfer.target[place.source_span().first] ^= std::byte{1};
  return memory::digest_box(part.box, transfer.wanted, transfer.target, transfer.item_bytes);
}

}  // namespace shardwire::restore
