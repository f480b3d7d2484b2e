// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/domain.hpp"

#include <fmt/core.h>
#include <rdma/fi_errno.h>
#include <sys/uio.h>

#include <iterator>
#include <utility>

namespace shardwire::transport::libfabric {
namespace {

constexpr int max_draws = 16;

FabricHandle open_fabric(const fi_info& info) {
  fid_fabric* raw = nullptr;
  check(fi_fabric(info.fabric_attr, &raw, nullptr), "open a libfabric fabric");
  return FabricHandle(raw);
}

DomainHandle open_domain(fid_fabric* fabric, fi_info* info) {
  fid_domain* raw = nullptr;
  check(fi_domain(fabric, info, &raw, nullptr), "open a libfabric domain");
  return DomainHandle(raw);
}

// A queue with a descriptor to wait on, if the provider offers one.
QueueHandle open_queue(fid_domain* domain, std::size_t entries, int& descriptor) {
  fi_cq_attr attributes{};
  attributes.size = entries;
  attributes.format = FI_CQ_FORMAT_CONTEXT;
  attributes.wait_obj = FI_WAIT_FD;
  fid_cq* raw = nullptr;
  if (fi_cq_open(domain, &attributes, &raw, nullptr) == 0) {
    QueueHandle queue(raw);
    if (fi_control(&raw->fid, FI_GETWAIT, &descriptor) == 0 && descriptor >= 0) return queue;
    descriptor = -1;
  }
  attributes.wait_obj = FI_WAIT_NONE;
  check(fi_cq_open(domain, &attributes, &raw, nullptr), "open a completion queue");
  return QueueHandle(raw);
}

AddressesHandle open_addresses(fid_domain* domain) {
  fi_av_attr attributes{};
  attributes.type = FI_AV_TABLE;
  fid_av* raw = nullptr;
  check(fi_av_open(domain, &attributes, &raw, nullptr), "open a table of addresses");
  return AddressesHandle(raw);
}

}  // namespace

Domain::Domain(Provider provider)
    : info_(std::move(provider.info)), rules_(std::move(provider.rules)), warning_(std::move(provider.warning)) {
  if (!info_) throw Error(ErrorCode::unsupported, "the libfabric transport is off: " + provider.why_not);
  fabric_ = open_fabric(*info_);
  domain_ = open_domain(fabric_.get(), info_.get());
}

OpenEndpoint Domain::open_endpoint(std::size_t queue_entries) const {
  OpenEndpoint opened;
  opened.queue = open_queue(domain_.get(), queue_entries, opened.descriptor);
  opened.addresses = open_addresses(domain_.get());
  fid_ep* raw = nullptr;
  check(fi_endpoint(domain_.get(), info_.get(), &raw, nullptr), "open an endpoint");
  opened.endpoint.reset(raw);
  check(fi_ep_bind(raw, &opened.queue->fid, FI_TRANSMIT | FI_RECV), "give an endpoint its completion queue");
  check(fi_ep_bind(raw, &opened.addresses->fid, 0), "give an endpoint its addresses");
  const int status = fi_enable(raw);
  if (status != 0) {
    throw Error(
        code_of(-status),
        fmt::format("{}; over verbs a smaller FI_UNIVERSE_SIZE (32) may help: the device has to have room for as "
                    "many peers",
                    fault_of(-status, "enable an endpoint").message));
  }
  return opened;
}

bool Domain::arm(std::vector<fid*>& queues) const {
  return fi_trywait(fabric_.get(), queues.data(), static_cast<int>(queues.size())) == 0;
}

// Keys must not be guessable.
std::uint64_t Domain::draw_key() {
  const std::lock_guard lock(mutex_);
  return ((std::uint64_t{random_()} << 32) | random_()) & rules_.largest_key;
}

std::shared_ptr<const ProviderRegistration> Domain::register_memory(const Memory& memory, std::uint64_t access,
                                                                    fid_ep* bound_to) {
  const bool on_device = memory.place.kind == MemoryKind::cuda;
  fid_mr* raw = nullptr;
  int status = -FI_ENOKEY;  // while another registration has this key
  for (int draw = 0; draw < max_draws && status == -FI_ENOKEY; ++draw) {
    const iovec range{memory.address, static_cast<std::size_t>(memory.bytes)};
    fi_mr_attr attributes{};
    attributes.mr_iov = &range;
    attributes.iov_count = 1;
    attributes.access = access;
    attributes.requested_key = rules_.provider_keys ? 0 : draw_key();
    if (on_device) {
      attributes.iface = FI_HMEM_CUDA;
      attributes.device.cuda = memory.place.device;
    }
    status = fi_mr_regattr(domain_.get(), &attributes, 0, &raw);
  }
  RegistrationHandle handle(status == 0 ? raw : nullptr);
  if (handle && rules_.bound_regions) {
    status = fi_mr_bind(raw, &bound_to->fid, 0);
    if (status == 0) status = fi_mr_enable(raw);
  }
  if (status != 0 && on_device) {
    throw Error(ErrorCode::unsupported,
                fault_of(-status, fmt::format("register {} bytes of a device", memory.bytes).c_str()).message);
  }
  if (status != 0) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("{} (is the limit of locked memory, ulimit -l, too low?)",
                            fault_of(-status, fmt::format("register {} bytes", memory.bytes).c_str()).message));
  }
  return std::make_shared<const ProviderRegistration>(ProviderRegistration{memory, std::move(handle)});
}

void Domain::add_reusable(const std::shared_ptr<const ProviderRegistration>& registration, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(reusable_, [](const auto& one) { return one.second.registration.expired(); });
  reusable_.emplace(registration->memory.address, Reusable{registration, number});
}

std::shared_ptr<const ProviderRegistration> Domain::find_reusable(const Memory& range, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  for (auto next = reusable_.upper_bound(range.address); next != reusable_.begin();) {
    --next;
    auto found = next->second.registration.lock();
    if (found && next->second.number == number && found->covers(range)) return found;
  }
  return nullptr;
}

}  // namespace shardwire::transport::libfabric
