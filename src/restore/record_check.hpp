// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "runtime/clock.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// Asks publishers whether they still publish what the directory says. A publisher knows at once what it has replaced or
/// withdrawn; the directories of other members hear of it later.
/// Threads: loop thread only.
class RecordCheck {
 public:
  using Records = std::vector<wire::PublicationRecord>;
  using Done = std::function<void(const Records& stale)>;  ///< those that are published no more
  /// In larger jobs every member asks so many of them, each member others.
  static constexpr std::size_t max_asked = 64;

  /// A publisher that does not answer within `patience`, or cannot be reached, counts as one that still publishes.
  /// `failed` gets what `done` throws later. Ownership: borrows the context.
  RecordCheck(const Context& context, std::string name, Duration patience, Callbacks::Failed failed);
  ~RecordCheck();
  RecordCheck(const RecordCheck&) = delete;
  RecordCheck& operator=(const RecordCheck&) = delete;

  /// Calls `done`, now or later, and not after stop().
  void ask(const Records& records, Done done);
  /// Ignores further answers.
  void stop();

 private:
  [[nodiscard]] bool is_own_gone(const wire::PublicationRecord& record) const;
  void ask_one(const wire::PublicationRecord& record);
  /// A member that was asked has answered, or never will.
  void answered();

  const Context& context_;
  std::string name_;
  Duration patience_;
  Done done_;
  Callbacks callbacks_;
  Timer timer_;
  std::uint64_t next_request_;
  std::size_t awaited_ = 0;
  Records stale_;
  std::vector<std::pair<std::shared_ptr<SourceLink>, std::uint64_t>> watched_;  // links with requests
};

}  // namespace shardwire::restore
