// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/registration.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/private_region.hpp"

namespace shardwire::transport::libfabric {
namespace {

constexpr std::uint64_t key_magic = 0x79656b636966696cULL;

struct KeyRecord {
  std::uint64_t magic = key_magic;
  std::uint64_t fabric = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t key = 0;
  std::uint64_t mark_key = 0;
  std::uint64_t mark_begin = 0;
};

/// Memory that peers may read. `Owned`: the object that keeps it alive.
template <typename Owned>
class ServedRegion final : public Region {
 public:
  template <typename... Arguments>
  ServedRegion(std::shared_ptr<Domain> domain, fid_ep* serving, std::uint64_t fabric, std::uint64_t number,
               Arguments&&... arguments)
      : owned_(std::forward<Arguments>(arguments)...), domain_(std::move(domain)) {
    const Memory memory = owned_.memory();
    KeyRecord record{.fabric = fabric, .bytes = memory.bytes};
    if (!memory.empty()) {
      registration_ = serve(memory, serving, record.key, record.begin);
      if (!domain_->rules().hardware) {
        const Memory mark{reinterpret_cast<std::byte*>(mark_.get()), sizeof(MarkValue), {}};
        mark_registration_ = serve(mark, serving, record.mark_key, record.mark_begin);
      }
      if (memory.place.kind == MemoryKind::cuda || domain_->rules().local_registration)
        domain_->add_reusable(registration_, number);
    }
    append(key_, record);
    seal(key_);
  }
  [[nodiscard]] Memory memory() const override { return owned_.memory(); }
  [[nodiscard]] Bytes key() const override { return key_; }

 private:
  std::shared_ptr<const ProviderRegistration> serve(const Memory& memory, fid_ep* serving, std::uint64_t& key,
                                                    std::uint64_t& begin) {
    auto registration = domain_->register_memory(memory, FI_REMOTE_READ | FI_READ, serving);
    key = fi_mr_key(registration->handle.get());
    if (key == FI_KEY_NOTAVAIL) throw Error(ErrorCode::unsupported, "the provider's keys are longer than 8 bytes");
    if (domain_->rules().virtual_addresses) begin = reinterpret_cast<std::uintptr_t>(memory.address);
    return registration;
  }

  Owned owned_;
  std::unique_ptr<MarkValue> mark_ = std::make_unique<MarkValue>();
  std::shared_ptr<Domain> domain_;                                 // domain of the registrations
  std::shared_ptr<const ProviderRegistration> registration_;       // owners: this and reads into it that are under way
  std::shared_ptr<const ProviderRegistration> mark_registration_;  // withdrawn first
  Bytes key_;
};

bool on_device(const ReadRange& range) {
  return range.into.place.kind == MemoryKind::cuda;
}

std::uintptr_t page_of(const std::byte* address) {
  static const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return reinterpret_cast<std::uintptr_t>(address) / page_bytes;
}

}  // namespace

std::unique_ptr<Region> allocate_region(const std::shared_ptr<Domain>& domain, fid_ep* serving, std::uint64_t fabric,
                                        ByteCount size_bytes, const MemoryPlace& place) {
  require_host("libfabric", place);
  return std::make_unique<ServedRegion<PrivatePages>>(domain, serving, fabric, 0, size_bytes);
}

std::unique_ptr<Region> adopt_region(const std::shared_ptr<Domain>& domain, fid_ep* serving, std::uint64_t fabric,
                                     const Memory& memory, GpuDirect& gpus) {
  std::unique_ptr<Region> region;
  const std::uint64_t number = gpus.number_of(memory);
  const auto make = [&] {
    region = std::make_unique<ServedRegion<PrivateMemory>>(domain, serving, fabric, number, memory);
  };
  memory.place.kind == MemoryKind::cuda ? gpus.register_memory(memory, make) : make();
  return region;
}

RemoteKey decode_key(ByteView key, ByteCount size_bytes, std::uint64_t fabric, const Rules& rules) {
  auto body = unseal(key);
  const auto record = body ? take<KeyRecord>(*body) : std::nullopt;
  const auto refuse = [](const char* why) { throw Error(ErrorCode::transport_failed, why); };
  if (!record || record->magic != key_magic || !body->empty()) {
    refuse("not a key of the libfabric transport, or a garbled one");
  }
  if (record->fabric != fabric) refuse("a key of another fabric than the peer's");
  if (size_bytes > record->bytes) refuse("a key for less memory than was announced");
  const bool impossible = record->begin > std::numeric_limits<std::uint64_t>::max() - record->bytes ||
                          (!rules.virtual_addresses && record->begin != 0) ||
                          (!rules.virtual_addresses && record->mark_begin != 0) ||
                          (!rules.provider_keys && std::max(record->key, record->mark_key) > rules.largest_key);
  if (impossible) refuse("a key that no region of this provider can have");
  return {record->key, record->begin, record->mark_key, record->mark_begin};
}

LocalMemory register_ranges(Domain& domain, fid_ep* reading, std::span<const ReadRange> ranges, GpuDirect& gpus) {
  LocalMemory local;
  const bool any_on_device = std::ranges::any_of(ranges, on_device);
  if ((!domain.rules().local_registration && !any_on_device) || ranges.empty()) return local;
  local.descriptors.resize(ranges.size());
  std::vector<std::size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return ranges[i].into.address; });
  const auto use = [&](std::size_t from, std::size_t count,
                       const std::shared_ptr<const ProviderRegistration>& registration) {
    for (std::size_t i = from; i < from + count; ++i) {
      local.descriptors[order[i]] = fi_mr_desc(registration->handle.get());
    }
    local.registrations.push_back(registration);
  };
  for (std::size_t next = 0; next < order.size();) {
    Memory run = ranges[order[next]].into;
    const bool device = on_device(ranges[order[next]]);
    if (!device && !domain.rules().local_registration) {
      ++next;
      continue;
    }
    // Our own region is bound to the serving endpoint, if the provider requires binding.
    const std::uint64_t number = gpus.number_of(run);
    if (auto found = domain.rules().bound_regions ? nullptr : domain.find_reusable(run, number)) {
      use(next++, 1, found);
      continue;
    }
    if (device) {
      // Registers the whole allocation, for further lists while this one is under way.
      std::shared_ptr<const ProviderRegistration> registered;
      gpus.register_around(run,
                           [&](const Memory& whole) { registered = domain.register_memory(whole, FI_READ, reading); });
      if (!domain.rules().bound_regions) domain.add_reusable(registered, number);
      std::size_t count = 1;
      while (next + count < order.size() && registered->covers(ranges[order[next + count]].into)) ++count;
      use(next, count, registered);
      next += count;
      continue;
    }
    // Includes the following ranges on the same or the next page: the memory between them is mapped.
    std::size_t count = 1;
    for (; next + count < order.size() && !on_device(ranges[order[next + count]]); ++count) {
      const Memory& range = ranges[order[next + count]].into;
      if (page_of(range.address) > page_of(run.address + run.bytes - 1) + 1) break;
      run.bytes = std::max<ByteCount>(run.bytes, static_cast<ByteCount>(range.address + range.bytes - run.address));
    }
    use(next, count, domain.register_memory(run, FI_READ, reading));
    next += count;
  }
  return local;
}

}  // namespace shardwire::transport::libfabric
