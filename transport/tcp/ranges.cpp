// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/ranges.hpp"

#include <algorithm>
#include <cstring>

namespace shardwire::transport::tcp {

void Ranges::append(std::byte* base, ByteCount bytes) {
  if (bytes == 0) return;
  const ByteCount begin = this->bytes();
  if (!entries_.empty() && entries_.back().base + (begin - begin_of(entries_.size() - 1)) == base) {
    entries_.back().end += bytes;
  } else {
    entries_.push_back({base, begin + bytes});
  }
}

RangeCursor Ranges::at(ByteCount offset) const {
  const auto found = std::upper_bound(entries_.begin(), entries_.end(), offset,
                                      [](ByteCount value, const Entry& entry) { return value < entry.end; });
  return {static_cast<std::size_t>(found - entries_.begin()), offset};
}

ByteCount Ranges::fill(RangeCursor from, ByteCount end, IoVectors& out) const {
  ByteCount offset = from.offset;
  for (std::size_t range = from.range; offset < end && out.room() > 0; ++range) {
    const ByteCount stop = std::min(end, entries_[range].end);
    out.add(entries_[range].base + (offset - begin_of(range)), stop - offset);
    offset = stop;
  }
  return offset - from.offset;
}

void Ranges::advance(RangeCursor& cursor, ByteCount bytes) const {
  cursor.offset += bytes;
  while (cursor.range < entries_.size() && entries_[cursor.range].end <= cursor.offset) ++cursor.range;
}

void Ranges::write(RangeCursor at, ByteView bytes) const {
  while (!bytes.empty()) {
    const Entry& entry = entries_[at.range];
    const ByteCount part = std::min<ByteCount>(bytes.size(), entry.end - at.offset);
    std::memcpy(entry.base + (at.offset - begin_of(at.range)), bytes.data(), part);
    advance(at, part);
    bytes = bytes.subspan(part);
  }
}

}  // namespace shardwire::transport::tcp
