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

/// As with tagged messages, which of them is faster depends on how many cores there are.
struct ReadStyle {
  Idle idle;
  std::string name;
};
std::span<const ReadStyle> read_styles();

/// Reads of one peer's memory.
struct ReadList {
  struct Range {
    std::uint64_t offset_bytes = 0;  ///< in what the peer exposes
    std::span<std::byte> into;
  };
  std::size_t peer = 0;
  std::vector<Range> ranges{};
};

/// The plainest way to read lists of ranges by a library's one-sided reads: so many to each peer at a time, one call for each.
/// It bounds what a restore that goes the way `read` over the same library can reach.
/// Threads: one; another one, its own, sleeps until somebody connects, or until its library needs it to serve reads.
/// Errors: throws Error.
class ReadLoop {
 public:
  static constexpr int max_under_way = 64;  ///< to each peer, as in a restore

  virtual ~ReadLoop() = default;

  /// Lets peers read this memory, which has to stay until this is gone; it may be empty. Returns what they connect with.
  /// Requires: called once.
  virtual std::vector<std::byte> expose(std::span<std::byte> memory) = 0;
  /// Lists name peers by number, in the order of these calls.
  virtual void connect(std::span<const std::byte> peer) = 0;
  /// Returns when all has arrived.
  virtual void read(std::span<const ReadList> lists, Idle idle) = 0;
};

/// What a module with a library's side of it gives (support/module.hpp).
struct ReadModule {
  /// With `tcp`, nothing but TCP, as TagModule::open; libfabric has to be told so by FI_PROVIDER before.
  std::unique_ptr<ReadLoop> (*open)(bool tcp);
  std::string (*version)();
};

}  // namespace shardwire::perf
