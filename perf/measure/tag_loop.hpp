// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "perf/measure/idle.hpp"

namespace shardwire::perf {

/// Parameters of a plain loop: polling is faster while there is a core for each process, sleeping in between otherwise.
struct TagStyle {
  std::size_t message_bytes;
  Idle idle;
  std::string name;
};
std::span<const TagStyle> tag_styles();

/// The simplest way to move a large buffer over UCX: tagged messages of one size, several at once. It bounds the speed
/// of a restore over the same library.
/// Threads: one. Errors: throws Error.
class TagLoop {
 public:
  virtual ~TagLoop() = default;

  [[nodiscard]] virtual std::vector<std::byte> address() const = 0;
  /// Returns the number by which sends name this peer.
  virtual std::size_t connect(std::span<const std::byte> peer) = 0;

  /// `bytes` in total, from a buffer that is repeated if it is shorter. Requires: buffer.size() >= any message.
  struct Send {
    std::size_t peer = 0;
    std::span<const std::byte> buffer;
    std::size_t bytes = 0;
  };
  /// Returns when all bytes have been sent and received. Both ends pass the same style.
  virtual void exchange(std::span<const Send> sends, std::span<std::byte> receive, const TagStyle& style) = 0;
};

/// The interface of the module for UCX (support/module.hpp).
struct TagModule {
  std::unique_ptr<TagLoop> (*open)(bool tcp);
  std::string (*version)();
};

/// Why there is no TagLoop here; empty if there is one.
std::string why_no_tag_loop();
/// With `tcp`, UCX uses only TCP on lo; otherwise it takes its transports from the environment, as in any program.
/// Errors: throws Error{unsupported} with why_no_tag_loop().
std::unique_ptr<TagLoop> open_tag_loop(bool tcp);
/// Version of the loaded UCX. Errors: as open_tag_loop().
std::string tag_loop_version();

}  // namespace shardwire::perf
