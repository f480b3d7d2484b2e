// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "perf/measure/idle.hpp"
#include "transport/ucx/handles.hpp"

namespace shardwire::perf {

/// One side of a plain loop over UCX: a context, its worker, and the endpoints that were made by it. For modules that call UCX.
/// Threads: one. Errors: throws Error.
class UcxSide {
 public:
  /// `features`: bits of UCP_FEATURE_*. With `tcp`, UCX uses nothing but TCP, on lo where UCX_NET_DEVICES does not say. Else it
  /// uses `transports` where UCX_TLS does not say; null: as in any program.
  UcxSide(bool tcp, std::uint64_t features, const char* transports);
  /// As close_endpoints().
  ~UcxSide();
  UcxSide(const UcxSide&) = delete;
  UcxSide& operator=(const UcxSide&) = delete;

  [[nodiscard]] ucp_context* context() const { return context_.get(); }
  [[nodiscard]] ucp_worker* worker() const { return worker_.get(); }
  /// What peers connect with.
  [[nodiscard]] std::vector<std::byte> address() const;
  /// It is closed with this.
  ucp_ep* connect(std::span<const std::byte> peer);
  /// What a loop does when its worker has made no progress.
  void wait(Idle idle) const;
  /// By force. Operations that are under way end, and are called back for.
  void close_endpoints();

 private:
  transport::ucx::ContextHandle context_;
  transport::ucx::WorkerHandle worker_;
  std::vector<ucp_ep*> endpoints_;  // closing them needs the worker's progress: no deleter can
};

}  // namespace shardwire::perf
