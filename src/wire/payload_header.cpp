// SPDX-License-Identifier: Apache-2.0
#include "wire/payload_header.hpp"

#include <cstring>
#include <type_traits>

namespace shardwire::wire {

namespace {

// Wire format. Both ends of a fabric run on the same kind of machine, as its domain guarantees.
struct Long {
  std::uint64_t request = 0;
  std::uint32_t part = 0;
  std::uint32_t has_digest = 0;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};
static_assert(sizeof(Long) == 32 && std::is_trivially_copyable_v<Long>);

}  // namespace

EncodedHeader::EncodedHeader(const PayloadHeader& header) {
  if (header.part == 0 && !header.digest) {
    size_ = sizeof header.request;
    std::memcpy(bytes_.data(), &header.request, size_);
    return;
  }
  const Digest128 digest = header.digest.value_or(Digest128{});
  const Long form{header.request, header.part, header.digest ? 1u : 0u, digest.low, digest.high};
  size_ = sizeof form;
  std::memcpy(bytes_.data(), &form, size_);
}

PayloadHeader decode_header(std::span<const std::byte> bytes) {
  PayloadHeader header;
  if (bytes.size() == sizeof header.request) std::memcpy(&header.request, bytes.data(), bytes.size());
  Long form;
  if (bytes.size() != sizeof form) return header;
  std::memcpy(&form, bytes.data(), sizeof form);
  if (form.has_digest > 1) return header;
  header.request = form.request;
  header.part = form.part;
  if (form.has_digest == 1) header.digest = Digest128{form.low, form.high};
  return header;
}

}  // namespace shardwire::wire
