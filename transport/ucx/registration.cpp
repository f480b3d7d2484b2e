// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/registration.hpp"

#include "transport/private_region.hpp"
#include "transport/ucx/read_channel.hpp"

namespace shardwire::transport::ucx {
namespace {

/// Memory that the NICs of a serving context know. `Owned`: what keeps it.
template <typename Owned>
class ServedRegion final : public Region {
 public:
  template <typename... Arguments>
  explicit ServedRegion(std::shared_ptr<Worker> worker, Arguments&&... arguments)
      : owned_(std::forward<Arguments>(arguments)...), worker_(std::move(worker)) {
    const Memory memory = owned_.memory();
    if (memory.empty()) {
      key_ = encode_key(nullptr, nullptr, memory);
      return;
    }
    const ScopedLogSuppression no_log;
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = memory.address;
    params.length = static_cast<std::size_t>(memory.bytes);
    const ucs_status_t status = ucp_mem_map(worker_->context(), &params, &handle_);
    if (status != UCS_OK) {
      throw Error(
          ErrorCode::out_of_resources,
          fmt::format("cannot register {} bytes with the NIC: {} (is the limit of locked memory, ulimit -l, too "
                      "low?)",
                      memory.bytes, ucs_status_string(status)));
    }
    try {
      key_ = encode_key(worker_->context(), handle_, memory);
    } catch (...) {
      ucp_mem_unmap(worker_->context(), handle_);
      throw;
    }
  }
  ~ServedRegion() override {
    if (handle_ == nullptr) return;
    const ScopedLogSuppression no_log;
    ucp_mem_unmap(worker_->context(), handle_);
  }
  ServedRegion(const ServedRegion&) = delete;
  ServedRegion& operator=(const ServedRegion&) = delete;
  [[nodiscard]] Memory memory() const override { return owned_.memory(); }
  [[nodiscard]] Bytes key() const override { return key_; }

 private:
  Owned owned_;
  std::shared_ptr<Worker> worker_;  // whose context it is
  ucp_mem_h handle_ = nullptr;
  Bytes key_;
};

}  // namespace

std::unique_ptr<Region> allocate_region(const std::shared_ptr<Worker>& worker, bool served, ByteCount size_bytes,
                                        const MemoryPlace& place) {
  require_host("ucx", place);
  if (!served) return std::make_unique<PrivatePages>(size_bytes);
  return std::make_unique<ServedRegion<PrivatePages>>(worker, size_bytes);
}

std::unique_ptr<Region> adopt_region(const std::shared_ptr<Worker>& worker, bool served, const Memory& memory) {
  require_host("ucx", memory.place);
  if (!served) return std::make_unique<PrivateMemory>(memory);
  return std::make_unique<ServedRegion<PrivateMemory>>(worker, memory);
}

}  // namespace shardwire::transport::ucx
