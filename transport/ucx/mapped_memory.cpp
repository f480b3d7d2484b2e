// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/mapped_memory.hpp"

#include <fmt/core.h>

#include <utility>

#include "transport/bytes.hpp"

namespace shardwire::transport::ucx {

MappedMemory::MappedMemory(std::shared_ptr<Worker> worker, const Memory& memory) : worker_(std::move(worker)) {
  const ScopedLogSuppression no_log;
  const bool on_device = memory.place.kind == MemoryKind::cuda;
  ucp_mem_map_params_t params{};  // without the memory type: UCX would trust it, and could then not detect it
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.address;
  params.length = static_cast<std::size_t>(memory.bytes);
  const ucs_status_t status = ucp_mem_map(worker_->context(), &params, &handle_);
  if (status != UCS_OK) {
    throw Error(on_device ? ErrorCode::unsupported : ErrorCode::out_of_resources,
                fmt::format("cannot register {} bytes with the NIC: {}{}", memory.bytes, ucs_status_string(status),
                            on_device ? "" : " (is the limit of locked memory, ulimit -l, too low?)"));
  }
  try {
    require_right(memory.place);
  } catch (...) {
    ucp_mem_unmap(worker_->context(), handle_);
    throw;
  }
}

MappedMemory::~MappedMemory() {
  const ScopedLogSuppression no_log;
  ucp_mem_unmap(worker_->context(), handle_);
}

Bytes MappedMemory::packed_key() const {
  void* packed = nullptr;
  std::size_t bytes = 0;
  check(ucp_rkey_pack(worker_->context(), handle_, &packed, &bytes), "pack the key of a region");
  const auto* const first = static_cast<const std::byte*>(packed);
  Bytes key(first, first + bytes);
  ucp_rkey_buffer_release(packed);
  return key;
}

// UCX registers what it can and reports success; the caller must check what was registered.
void MappedMemory::require_right(const MemoryPlace& place) const {
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE;
  check(ucp_mem_query(handle_, &attributes), "ask UCX for its registration");
  const TakenFor taken_for = attributes.mem_type == UCS_MEMORY_TYPE_HOST   ? TakenFor::host
                             : attributes.mem_type == UCS_MEMORY_TYPE_CUDA ? TakenFor::cuda
                                                                           : TakenFor::other;
  if (const std::string why = why_mistaken(place, taken_for); !why.empty()) throw Error(ErrorCode::unsupported, why);
  if (place.kind == MemoryKind::host) return;
  const Bytes key = packed_key();
  ByteView rest = key;  // begins with the bit mask of its memory domains
  if (take<std::uint64_t>(rest).value_or(0) == 0) {
    throw Error(ErrorCode::unsupported, "UCX has registered it with no NIC (IB_GPU_DIRECT_RDMA, IB_REG_METHODS)");
  }
}

std::shared_ptr<const MappedMemory> DeviceTargets::around(const Memory& range) {
  for (const auto& [number, known] : known_) {
    const auto& allocation = known.allocation;
    if (range.address < allocation.address || range.address + range.bytes > allocation.address + allocation.bytes) {
      continue;
    }
    if (auto mapped = known.mapped.lock()) return mapped;  // its owners read into it, so it was not freed
  }
  std::erase_if(known_, [](const auto& one) { return one.second.mapped.expired(); });
  std::shared_ptr<const MappedMemory> mapped;
  const memory::DeviceAllocation allocation = gpus_->register_around(
      range, [&](const Memory& whole) { mapped = std::make_shared<const MappedMemory>(worker_, whole); });
  known_.insert_or_assign(allocation.number, Known{allocation, mapped});
  return mapped;
}

}  // namespace shardwire::transport::ucx
