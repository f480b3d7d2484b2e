// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "perf/measure/idle.hpp"
#include "transport/ucx/handles.hpp"

namespace shardwire::perf {

/// One side of a plain loop over UCX: a context, its worker, and the worker's endpoints. For modules that call UCX.
/// Threads: one. Errors: throws Error.
class UcxSide {
 public:
  /// `features`: bits of UCP_FEATURE_*. With `tcp`, UCX uses only TCP, on lo unless UCX_NET_DEVICES is set. Otherwise
  /// it uses `transports` unless UCX_TLS is set; null: as in any program.
  UcxSide(bool tcp, std::uint64_t features, const char* transports);
  /// As close_endpoints().
  ~UcxSide();
  UcxSide(const UcxSide&) = delete;
  UcxSide& operator=(const UcxSide&) = delete;

  [[nodiscard]] ucp_context* context() const { return context_.get(); }
  [[nodiscard]] ucp_worker* worker() const { return worker_.get(); }
  /// The data that peers connect with.
  [[nodiscard]] std::vector<std::byte> address() const;
  /// The endpoint is closed with this object.
  ucp_ep* connect(std::span<const std::byte> peer);
  /// Called by a loop when its worker has made no progress.
  void wait(Idle idle) const;
  /// By force. Operations under way end, with their callbacks.
  void close_endpoints();

 private:
  transport::ucx::ContextHandle context_;
  transport::ucx::WorkerHandle worker_;
  std::vector<ucp_ep*> endpoints_;  // closing them needs the worker's progress, which no deleter can provide
};

}  // namespace shardwire::perf
