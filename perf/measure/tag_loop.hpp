// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "perf/measure/idle.hpp"

namespace shardwire::perf {

/// What a plain loop can choose: looking for progress all the time is quicker while there is a core for each process,
/// sleeping in between when there is not.
struct TagStyle {
  std::size_t message_bytes;
  Idle idle;
  std::string name;
};
std::span<const TagStyle> tag_styles();

/// The plainest way to move a large buffer over UCX: tagged messages of one size, several at once. It bounds what a restore
/// over the same library can reach.
/// Threads: one. Errors: throws Error.
class TagLoop {
 public:
  virtual ~TagLoop() = default;

  [[nodiscard]] virtual std::vector<std::byte> address() const = 0;
  /// The number by which sends name this peer.
  virtual std::size_t connect(std::span<const std::byte> peer) = 0;

  /// `bytes` in all, out of a buffer that is begun anew where it is shorter. Requires: buffer.size() >= any message.
  struct Send {
    std::size_t peer = 0;
    std::span<const std::byte> buffer;
    std::size_t bytes = 0;
  };
  /// Returns when all has left and all has arrived. Both ends give the same style.
  virtual void exchange(std::span<const Send> sends, std::span<std::byte> receive, const TagStyle& style) = 0;
};

/// What the module with UCX's side of it gives (support/module.hpp).
struct TagModule {
  std::unique_ptr<TagLoop> (*open)(bool tcp);
  std::string (*version)();
};

/// Why there is no TagLoop here; empty when there is one.
std::string why_no_tag_loop();
/// With `tcp`, UCX is told to use nothing but TCP on lo; else it takes its transports from the environment, as in any program.
/// Errors: throws Error{unsupported} with why_no_tag_loop().
std::unique_ptr<TagLoop> open_tag_loop(bool tcp);
/// Of UCX as loaded. Errors: as open_tag_loop().
std::string tag_loop_version();

}  // namespace shardwire::perf
