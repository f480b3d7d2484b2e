// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "perf/measure/idle.hpp"

namespace shardwire::perf {

/// As with tagged messages, the faster style depends on the number of cores.
struct ReadStyle {
  Idle idle;
  std::string name;
};
std::span<const ReadStyle> read_styles();

/// Reads of one peer's memory.
struct ReadList {
  struct Range {
    std::uint64_t offset_bytes = 0;  ///< in the memory that the peer exposes
    std::span<std::byte> into;
  };
  std::size_t peer = 0;
  std::vector<Range> ranges{};
};

/// The simplest way to read lists of ranges by a library's one-sided reads: a bounded number per peer at a time, one
/// call for each. It bounds the speed of a restore that uses the method `read` over the same library.
/// Threads: one; a second one, its own, sleeps until a peer connects, or until its library needs it to serve reads.
/// Errors: throws Error.
class ReadLoop {
 public:
  static constexpr int max_under_way = 64;  ///< to each peer, as in a restore

  virtual ~ReadLoop() = default;

  /// Lets peers read this memory, which must outlive this object; it may be empty. Returns the data that peers connect
  /// with.
  /// Requires: called once.
  virtual std::vector<std::byte> expose(std::span<std::byte> memory) = 0;
  /// Lists name peers by number, in the order of these calls.
  virtual void connect(std::span<const std::byte> peer) = 0;
  /// Returns when all bytes have arrived.
  virtual void read(std::span<const ReadList> lists, Idle idle) = 0;
};

/// The interface of a module for one library (support/module.hpp).
struct ReadModule {
  /// With `tcp`, only TCP, as in TagModule::open; for libfabric the caller must set FI_PROVIDER before.
  std::unique_ptr<ReadLoop> (*open)(bool tcp);
  std::string (*version)();
};

}  // namespace shardwire::perf
