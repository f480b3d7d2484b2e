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

/// State shared by runtime, streams and memory: the table of functions, primary contexts, pinned memory, and whether
/// CUDA has failed.
/// Threads: any.
class Platform {
 public:
  explicit Platform(const Api& api) : api_(api) {}
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;

  [[nodiscard]] const Api& api() const { return api_; }

  /// Errors: throws Error for every status but success; after a status that breaks the context, always.
  void check(int status, const char* operation);
  /// Errors: throws Error{transport_failed} once CUDA has failed permanently.
  void require_working() const;
  /// For callbacks, in which no CUDA function may be called; it therefore contains only the status number.
  Error error_in_callback(int status);

  /// The context that the CUDA runtime uses on the device; created on first use and kept.
  CUcontext context(int device);
  /// A device whose context already exists, regardless of its creator; -1: none.
  [[nodiscard]] int active_device();
  /// The active device, else the first.
  [[nodiscard]] int any_device() { return std::max(active_device(), 0); }

  void add_host_memory(const std::byte* address, ByteCount bytes);
  void remove_host_memory(const std::byte* address);
  /// Whether it is host memory allocated here.
  [[nodiscard]] bool is_host_memory(const std::byte* address) const;

 private:
  void note(int status);

  const Api api_;
  std::atomic<int> failure_ = 0;  ///< the first status after which every call fails
  mutable std::mutex mutex_;      ///< guards the following fields
  std::map<int, CUcontext> contexts_;
  std::map<const std::byte*, ByteCount> host_memory_;
};

/// Makes the device's primary context current on this thread and restores the previous state: cudaSetDevice() would
/// leave a context on a device that the thread had never used.
class CurrentContext {
 public:
  CurrentContext(Platform& platform, int device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Api& api_;
};

/// For public calls. Errors: as Platform::require_working().
CurrentContext enter(Platform& platform, int device);

}  // namespace shardwire::memory::cuda
