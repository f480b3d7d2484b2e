// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <random>

#include "transport/libfabric/provider.hpp"

namespace shardwire::transport::libfabric {

/// An endpoint with what it needs, one for itself. Closed in the order that libfabric wants, with nothing polled between.
struct OpenEndpoint {
  QueueHandle queue;
  AddressesHandle addresses;
  EndpointHandle endpoint;
  int descriptor = -1;  ///< of the queue, which owns it; -1: it has none

  [[nodiscard]] explicit operator bool() const { return endpoint != nullptr; }
};

/// Memory that the provider knows.
struct ProviderRegistration {
  Memory memory;
  RegistrationHandle handle;
  [[nodiscard]] bool covers(const Memory& range) const {
    return range.place == memory.place && range.address >= memory.address &&
           range.address + range.bytes <= memory.address + memory.bytes;
  }
};

/// A domain of a provider. Threads: registrations any, the rest one.
class Domain {
 public:
  /// Errors: throws Error when libfabric cannot open it, or there is no provider.
  explicit Domain(Provider provider);

  [[nodiscard]] const Rules& rules() const { return rules_; }
  /// What people should know of its provider; empty: nothing.
  [[nodiscard]] const std::string& warning() const { return warning_; }
  /// `queue_entries`: completions that may wait to be looked at.
  [[nodiscard]] OpenEndpoint open_endpoint(std::size_t queue_entries) const;
  /// True, and what the caller waits for is told by descriptors, when none of the queues has anything by now.
  [[nodiscard]] bool arm(std::vector<fid*>& queues) const;

  /// For what is done with memory (FI_READ, FI_REMOTE_READ). `bound_to`: where regions are bound.
  /// Errors: throws Error{out_of_resources}; Error{unsupported} for memory of a device.
  [[nodiscard]] std::shared_ptr<const ProviderRegistration> register_memory(const Memory& memory, std::uint64_t access,
                                                                            fid_ep* bound_to);
  /// Remembers it for reads into it, as long as somebody has it. `number`: of the allocation on a device that it is.
  void add_reusable(const std::shared_ptr<const ProviderRegistration>& registration, std::uint64_t number);
  /// One of those that covers all of the range, and is still the same allocation, if any does.
  [[nodiscard]] std::shared_ptr<const ProviderRegistration> find_reusable(const Memory& range, std::uint64_t number);

 private:
  std::uint64_t draw_key();

  Info info_;
  Rules rules_;
  std::string warning_;
  FabricHandle fabric_;
  DomainHandle domain_;
  std::mutex mutex_;
  struct Reusable {
    std::weak_ptr<const ProviderRegistration> registration;
    std::uint64_t number;
  };
  std::random_device random_;                           // guarded by mutex_
  std::multimap<const std::byte*, Reusable> reusable_;  // by begin; guarded by mutex_
};

}  // namespace shardwire::transport::libfabric
