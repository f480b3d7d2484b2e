// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <random>

#include "transport/libfabric/provider.hpp"

namespace shardwire::transport::libfabric {

/// An endpoint with its own address vector and queue. Closed in the order that libfabric requires, without polling.
struct OpenEndpoint {
  QueueHandle queue;
  AddressesHandle addresses;
  EndpointHandle endpoint;
  int descriptor = -1;  ///< of the queue, which owns it; -1: none

  [[nodiscard]] explicit operator bool() const { return endpoint != nullptr; }
};

/// Memory registered with the provider.
struct ProviderRegistration {
  Memory memory;
  RegistrationHandle handle;
  [[nodiscard]] bool covers(const Memory& range) const {
    return range.place == memory.place && range.address >= memory.address &&
           range.address + range.bytes <= memory.address + memory.bytes;
  }
};

/// A domain of a provider. Threads: registrations on any thread, everything else on one.
class Domain {
 public:
  /// Errors: throws Error if libfabric cannot open it, or if there is no provider.
  explicit Domain(Provider provider);

  [[nodiscard]] const Rules& rules() const { return rules_; }
  /// A warning about its provider; empty: none.
  [[nodiscard]] const std::string& warning() const { return warning_; }
  /// `queue_entries`: maximum number of unread completions.
  [[nodiscard]] OpenEndpoint open_endpoint(std::size_t queue_entries) const;
  /// True if none of the queues has an entry; descriptors then report the next one.
  [[nodiscard]] bool arm(std::vector<fid*>& queues) const;

  /// `access`: the operations to allow (FI_READ, FI_REMOTE_READ). `bound_to`: the endpoint that regions are bound to.
  /// Errors: throws Error{out_of_resources}; Error{unsupported} for device memory.
  [[nodiscard]] std::shared_ptr<const ProviderRegistration> register_memory(const Memory& memory, std::uint64_t access,
                                                                            fid_ep* bound_to);
  /// Remembers it as a target of reads while any owner keeps it. `number`: the device allocation's number.
  void add_reusable(const std::shared_ptr<const ProviderRegistration>& registration, std::uint64_t number);
  /// A remembered registration that covers the whole range and is still of the same allocation, or null.
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
  std::multimap<const std::byte*, Reusable> reusable_;  // by start address; guarded by mutex_
};

}  // namespace shardwire::transport::libfabric
