// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/state_block.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "memory/device_events.hpp"
#include "memory/strided_copy.hpp"
#include "perf/measure/private_pages.hpp"
#include "shardwire/error.hpp"
#include "support/boot_id.hpp"
#include "support/host_name.hpp"

namespace shardwire::perf {

namespace {

constexpr ByteCount pinned_bytes = 16u << 20;

}  // namespace

memory::DeviceCopy plain_copy(const std::byte* from, std::byte* to, ByteCount bytes) {
  const Box all = Box::whole({static_cast<Extent>(bytes)});
  return {memory::StridedCopy(all, memory::packed(all), memory::packed(all), 1), from, to};
}

Bytes host_identity() {
  const std::string all = support::host_name() + "/" + support::boot_id();
  const auto bytes = std::as_bytes(std::span(all));
  return {bytes.begin(), bytes.end()};
}

int number_on_host(const std::vector<Bytes>& hosts, int member) {
  const auto mine = hosts.begin() + member;
  return static_cast<int>(std::count(hosts.begin(), mine, *mine));
}

StatePlace place_of(MemoryKind kind, int number_on_host, bool ordinary) {
  if (kind == MemoryKind::host) return {.ordinary = ordinary};
  const memory::FoundRuntime found = memory::device_runtime();
  const int count = found.runtime ? found.runtime->device_count() : 0;
  return {.device = count == 0 ? 0 : number_on_host % count};
}

StateBlock::StateBlock(Session& session, ByteCount bytes, const StatePlace& place) : device_(place.device) {
  if (device_ == memory::on_host && !place.ordinary) {
    arena_ = session.allocate(bytes);
    bytes_ = arena_.bytes();
    return;
  }
  pages_ = private_pages(bytes);
  bytes_ = {pages_.get(), static_cast<std::size_t>(bytes)};
  if (device_ == memory::on_host) return;
  memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) throw Error(ErrorCode::unsupported, "there is no device memory: " + found.why_not);
  runtime_ = std::move(found.runtime);
  if (bytes == 0) return;
  memory_ = runtime_->allocate(device_, bytes);
  stream_ = runtime_->open_stream(device_);
}

View StateBlock::view_of(const std::byte* place) const {
  if (runtime_ == nullptr) return {.data = const_cast<std::byte*>(place), .kind = MemoryKind::host};
  std::byte* const data = place == nullptr ? nullptr : memory_->address() + (place - bytes_.data());
  return {.data = data, .kind = MemoryKind::cuda, .device = device_};
}

void StateBlock::move_to_device(std::vector<memory::ValueBox>& boxes) const {
  std::erase_if(boxes, [](const memory::ValueBox& box) { return box.elements == 0; });
  for (memory::ValueBox& box : boxes) box.first = memory_->address() + (box.first - bytes_.data());
}

bool StateBlock::fill(std::vector<memory::ValueBox> boxes) const {
  if (!memory_) return false;
  move_to_device(boxes);
  memory::DeviceCheck* const values = memory::check_of(*stream_);
  if (values == nullptr) return false;
  values->fill(boxes);
  memory::wait_until_done(*stream_);
  return true;
}

std::optional<std::uint64_t> StateBlock::count_wrong(std::vector<memory::ValueBox> boxes) const {
  if (!memory_) return std::nullopt;
  move_to_device(boxes);
  memory::DeviceCheck* const values = memory::check_of(*stream_);
  if (values == nullptr) return std::nullopt;
  std::uint64_t wrong = 0;
  values->count_wrong(boxes, wrong);
  memory::wait_until_done(*stream_);
  return wrong;
}

void StateBlock::transfer(bool to_device) const {
  if (!memory_) return;
  const auto pinned = runtime_->allocate_host(std::min<ByteCount>(pinned_bytes, bytes_.size()));
  for (std::span<std::byte> left = bytes_; !left.empty();) {
    const auto part = left.first(std::min<std::size_t>(left.size(), pinned->bytes()));
    std::byte* const there = memory_->address() + (part.data() - bytes_.data());
    std::byte* const between = pinned->address();
    if (to_device) std::memcpy(between, part.data(), part.size());
    const auto copy = to_device ? plain_copy(between, there, part.size()) : plain_copy(there, between, part.size());
    stream_->copy({&copy, 1});
    memory::wait_until_done(*stream_);
    if (!to_device) std::memcpy(part.data(), between, part.size());
    left = left.subspan(part.size());
  }
}

void StateBlock::copy_on_device(const StateBlock& target, ByteCount bytes) const {
  if (bytes == 0 || !memory_) return;
  for (ByteCount done = 0; done < bytes;) {
    const ByteCount part = std::min(bytes - done, memory_->bytes());
    const auto copy = plain_copy(memory_->address(), target.memory_->address() + done, part);
    stream_->copy({&copy, 1});
    done += part;
  }
  memory::wait_until_done(*stream_);
}

}  // namespace shardwire::perf
