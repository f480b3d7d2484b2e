// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "transport/ucx/handles.hpp"

namespace shardwire::perf {

/// The plainest way to move a large buffer over UCX: tagged messages of one size, several at once, each end looking for
/// progress all the time. It bounds what a restore over the same library can reach.
/// Threads: one. Errors: throws Error.
class TagLoop {
 public:
  /// Takes its transports from the environment, as any program does.
  TagLoop();
  ~TagLoop();
  TagLoop(const TagLoop&) = delete;
  TagLoop& operator=(const TagLoop&) = delete;

  [[nodiscard]] std::vector<std::byte> address() const;
  void connect(std::span<const std::byte> peer);
  /// Both return when all of it has arrived at (or left) here. Both ends give the same sizes.
  void send(std::span<const std::byte> buffer, std::size_t message_bytes);
  void receive(std::span<std::byte> buffer, std::size_t message_bytes);

 private:
  struct Window;
  transport::ucx::ContextHandle context_;
  transport::ucx::WorkerHandle worker_;
  ucp_ep* endpoint_ = nullptr;  // closing it needs the worker's progress: in the destructor
};

}  // namespace shardwire::perf
