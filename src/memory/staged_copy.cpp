// SPDX-License-Identifier: Apache-2.0
#include "memory/staged_copy.hpp"

namespace shardwire::memory {

void StagedCopy::append(const QueuedCopy& copy, ByteCount slot_bytes, std::vector<StagedCopy>& staged) {
  std::vector<StridedCopy> parts;
  copy.copy.split(slot_bytes, parts);
  for (const StridedCopy& part : parts) {
    const bool fits = !staged.empty() && staged.back().source_device_ == copy.source_device &&
                      staged.back().target_device_ == copy.target_device &&
                      staged.back().bytes_ + part.bytes() <= slot_bytes;
    StagedCopy& last = fits ? staged.back() : staged.emplace_back(copy.source_device, copy.target_device);
    last.parts_.push_back({part, copy.source, copy.target, last.bytes_});
    last.bytes_ += part.bytes();
  }
}

std::vector<DeviceCopy> StagedCopy::device_half(std::byte* slot, bool fills) const {
  std::vector<DeviceCopy> copies;
  copies.reserve(parts_.size());
  for (const Part& part : parts_) {
    if (fills) {
      copies.push_back({part.copy.into_dense(), part.source, slot + part.at});
    } else {
      copies.push_back({part.copy.from_dense(), slot + part.at, part.target});
    }
  }
  return copies;
}

void StagedCopy::copy_host_half(std::byte* slot, bool fills, Stores stores) const {
  for (const Part& part : parts_) {
    if (fills) {
      part.copy.into_dense().run_all(part.source, slot + part.at, Stores::cached);
    } else {
      part.copy.from_dense().run_all(slot + part.at, part.target, stores);
    }
  }
}

}  // namespace shardwire::memory
