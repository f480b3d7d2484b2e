// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/registration.hpp"

#include <optional>
#include <utility>

#include "transport/private_region.hpp"
#include "transport/ucx/mapped_memory.hpp"
#include "transport/ucx/read_channel.hpp"

namespace shardwire::transport::ucx {
namespace {

/// Memory registered with the NICs of a serving context. `Owned`: the object that keeps it alive.
template <typename Owned>
class ServedRegion final : public Region {
 public:
  template <typename... Arguments>
  explicit ServedRegion(const std::shared_ptr<Worker>& worker, Arguments&&... arguments)
      : owned_(std::forward<Arguments>(arguments)...) {
    const Memory memory = owned_.memory();
    if (!memory.empty()) mapped_.emplace(worker, memory);
    key_ = encode_key(mapped_ ? &*mapped_ : nullptr, memory);
  }
  ServedRegion(const ServedRegion&) = delete;
  ServedRegion& operator=(const ServedRegion&) = delete;
  [[nodiscard]] Memory memory() const override { return owned_.memory(); }
  [[nodiscard]] Bytes key() const override { return key_; }

 private:
  Owned owned_;
  std::optional<MappedMemory> mapped_;  // empty for an empty region
  Bytes key_;
};

}  // namespace

std::unique_ptr<Region> allocate_region(const std::shared_ptr<Worker>& worker, bool served, ByteCount size_bytes,
                                        const MemoryPlace& place) {
  require_host("ucx", place);
  if (!served) return std::make_unique<PrivatePages>(size_bytes);
  return std::make_unique<ServedRegion<PrivatePages>>(worker, size_bytes);
}

std::unique_ptr<Region> adopt_region(const std::shared_ptr<Worker>& worker, bool served, const Memory& memory,
                                     GpuDirect& gpus) {
  const bool on_device = memory.place.kind == MemoryKind::cuda;
  if (!served && on_device) throw Error(ErrorCode::unsupported, "the ucx transport reads nothing by hardware here");
  if (!served) return std::make_unique<PrivateMemory>(memory);
  std::unique_ptr<Region> region;
  const auto make = [&] { region = std::make_unique<ServedRegion<PrivateMemory>>(worker, memory); };
  on_device ? gpus.register_memory(memory, make) : make();
  return region;
}

}  // namespace shardwire::transport::ucx
