// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "move/engine.hpp"
#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/source.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

/// Progress of a source that moves no bytes.
SourceProgress progress_of(const Source& source, const Context& context);

/// Watches the sources of a movement: those whose bytes stop arriving are asked whether they are alive.
/// Threads: loop thread only.
class SourceWatch {
 public:
  using Sources = std::span<const std::unique_ptr<Source>>;
  /// Bytes are due over this source's message channel, and it has ended. Unless it was aborted, the source has just
  /// answered.
  using ChannelEnded = std::function<void(Source& source)>;

  /// `from`: name of the publication. Failures go to `failed`.
  /// Ownership: borrows the context, sources and engine.
  SourceWatch(const Context& context, ChannelEnded channel_ended, std::string from, Sources sources,
              const move::Engine& engine, Callbacks::Failed failed);

  /// Call it often while the transfers move.
  void look(std::span<const move::Transfer> transfers);
  /// Reports nothing more.
  void stop() { callbacks_.end(); }
  /// Progress of each source. `transfers`: empty before they are known.
  [[nodiscard]] std::vector<SourceProgress> progress(std::span<const move::Transfer> transfers) const;

 private:
  struct Arrivals {  // from one source
    ByteCount bytes = 0;
    Clock::Time last;
  };

  void look_at_channel(Source& source, std::span<const move::Transfer> transfers);
  void look_at_reads(Source& source);
  [[nodiscard]] ByteCount arrived(std::size_t source) const;
  [[nodiscard]] bool message_channel_failed(const Source& source, std::span<const move::Transfer> transfers) const;

  const Context& context_;
  ChannelEnded channel_ended_;
  std::string from_;
  Sources sources_;
  const move::Engine& engine_;
  Callbacks callbacks_;
  std::vector<Arrivals> arrivals_;  // by source
};

}  // namespace shardwire::restore
