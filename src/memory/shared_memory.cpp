// SPDX-License-Identifier: Apache-2.0
#include "memory/shared_memory.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "shardwire/error.hpp"

namespace shardwire::memory {

ByteCount chunk_count(ByteCount bytes, ByteCount chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes == 0 ? 0 : 1);
}

ByteCount bytes_of_chunk(ByteCount index, ByteCount bytes, ByteCount chunk_bytes) {
  return std::min(chunk_bytes, whole_pages(bytes) - index * chunk_bytes);
}

ByteCount chunk_bytes_for(ByteCount bytes) {
  ByteCount chunk = smallest_chunk_bytes;
  while (chunk_count(bytes, chunk) > max_chunks) chunk *= 2;
  return chunk;
}

SharedMemory::SharedMemory(ByteCount bytes, Pages pages, const PagePlacement& placement)
    : bytes_(bytes), chunk_bytes_(chunk_bytes_for(bytes)), mapping_(whole_pages(bytes)) {
  const ByteCount count = chunk_count(bytes, chunk_bytes_);
  for (ByteCount chunk = 0; chunk < count; ++chunk) {
    const ByteCount size = bytes_of_chunk(chunk, bytes, chunk_bytes_);
    const auto& memory = chunks_.emplace_back(create_memory(size));
    mapping_.map(chunk * chunk_bytes_, size, memory, true);
    place({address() + chunk * chunk_bytes_, size}, pages, placement);
    if (pages == Pages::at_once) allocate_pages(memory, size);  // whatever is not there yet
  }
}

void SharedMemory::place(std::span<std::byte> chunk, Pages pages, const PagePlacement& placement) {
  const auto try_it = [&](std::string refusal) {
    if (misplaced_.empty()) misplaced_ = std::move(refusal);
  };
  if (placement.node >= 0) try_it(prefer_node(chunk, placement.node));
  if (placement.huge && pages == Pages::at_once && chunk.size() >= huge_page_bytes) try_it(take_huge_pages(chunk));
}

SharedMemory::SharedMemory(ByteCount bytes, std::vector<support::Descriptor> chunks)
    : bytes_(bytes), chunk_bytes_(chunk_bytes_for(bytes)), mapping_(whole_pages(bytes)), chunks_(std::move(chunks)) {
  if (chunks_.size() != chunk_count(bytes, chunk_bytes_)) {
    throw Error(ErrorCode::transport_failed, fmt::format("{} descriptors came for {} bytes of memory, which are {}",
                                                         chunks_.size(), bytes, chunk_count(bytes, chunk_bytes_)));
  }
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const ByteCount size = bytes_of_chunk(i, bytes, chunk_bytes_);
    require_fixed(chunks_[i], size);
    mapping_.map(i * chunk_bytes_, size, chunks_[i], true);
  }
}

void SharedMemory::seal() {
  const std::lock_guard lock(mutex_);
  for (const support::Descriptor& chunk : chunks_) seal_memory(chunk);
}

void SharedMemory::require_sealed() const {
  const std::lock_guard lock(mutex_);
  each_chunk(
      [](ByteCount, ByteCount length, const support::Descriptor& chunk) { memory::require_sealed(chunk, length); });
}

template <typename Visit>
void SharedMemory::each_chunk(Visit visit) const {
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    visit(i * chunk_bytes_, bytes_of_chunk(i, bytes_, chunk_bytes_), chunks_[i]);
  }
}

std::vector<int> SharedMemory::descriptors() const {
  std::vector<int> out;
  const std::lock_guard lock(mutex_);
  for (const auto& chunk : chunks_) {
    if (chunk) out.push_back(chunk.get());
  }
  return out;
}

std::uint64_t SharedMemory::present() const {
  std::uint64_t bits = 0;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < chunks_.size(); ++i) bits |= std::uint64_t{chunks_[i] ? 1U : 0U} << i;
  return bits;
}

ByteCount SharedMemory::discard(ByteCount offset_bytes, ByteCount bytes) {
  ByteCount discarded = 0;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const ByteCount begin = i * chunk_bytes_;
    const ByteCount length = bytes_of_chunk(i, bytes_, chunk_bytes_);
    const bool inside = begin >= offset_bytes && std::min(begin + length, bytes_) <= offset_bytes + bytes;
    if (!chunks_[i] || !inside) continue;
    mapping_.unmap(begin, length);
    chunks_[i].reset();
    discarded += length;
  }
  return discarded;
}

bool SharedMemory::holds(ByteCount offset_bytes, ByteCount bytes) const {
  bool all = true;
  const std::lock_guard lock(mutex_);
  each_chunk([&](ByteCount begin, ByteCount length, const support::Descriptor& chunk) {
    const bool outside = begin + length <= offset_bytes || begin >= offset_bytes + bytes;
    all = all && (chunk || outside);
  });
  return all;
}

ByteCount SharedMemory::untouched_bytes() const {
  ByteCount untouched = 0;
  const std::lock_guard lock(mutex_);
  each_chunk([&](ByteCount, ByteCount length, const support::Descriptor& chunk) {
    struct stat info {};
    if (!chunk || ::fstat(chunk.get(), &info) != 0) return;
    untouched += length - std::min(length, static_cast<ByteCount>(info.st_blocks) * 512);
  });
  return untouched;
}

}  // namespace shardwire::memory
