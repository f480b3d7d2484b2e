// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "memory/cuda/api.hpp"
#include "shardwire/error.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// What runtime, streams and memory share: the table of functions, primary contexts, pinned memory, and whether CUDA has failed.
/// Threads: any.
class Platform {
 public:
  explicit Platform(const Api& api) : api_(api) {}
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;

  [[nodiscard]] const Api& api() const { return api_; }

  /// Errors: throws Error for every status but that of success; after one that breaks the context, always.
  void check(int status, const char* operation);
  /// Errors: throws Error{transport_failed} once CUDA has failed for good.
  void require_working() const;
  /// Inside of a callback, where nothing of CUDA may be called; so it names no more than the number.
  Error error_in_callback(int status);

  /// The context that the CUDA runtime uses on the device, made when first asked for and kept.
  CUcontext context(int device);
  /// A device whose context is there already, whoever has made it; -1: there is none.
  [[nodiscard]] int active_device();
  /// That, else the first.
  [[nodiscard]] int any_device() { return std::max(active_device(), 0); }

  void add_host_memory(const std::byte* address, ByteCount bytes);
  void remove_host_memory(const std::byte* address);
  /// Whether it is memory of ours that lies on the host.
  [[nodiscard]] bool is_host_memory(const std::byte* address) const;

 private:
  void note(int status);

  const Api api_;
  std::atomic<int> failure_ = 0;  ///< the first status after which nothing works
  mutable std::mutex mutex_;      ///< guards what follows
  std::map<int, CUcontext> contexts_;
  std::map<const std::byte*, ByteCount> host_memory_;
};

/// Makes the device's primary context that of this thread, and puts back what was there: cudaSetDevice() would leave a context on
/// whatever device the thread had never used.
class CurrentContext {
 public:
  CurrentContext(Platform& platform, int device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Api& api_;
};

/// For a call that a caller makes. Errors: as Platform::require_working().
CurrentContext enter(Platform& platform, int device);

}  // namespace shardwire::memory::cuda
