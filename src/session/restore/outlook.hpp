// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "session/control/directory.hpp"

namespace shardwire {

/// What decides whether a layout rank that nobody publishes is waited for or called missing.
struct Outlook {
  int member = 0;                      ///< this process
  bool own_on_its_way = false;         ///< it publishes the name, and the roster does not say so yet
  std::optional<std::int64_t> step{};  ///< that is asked for
  int ranks = 0;                       ///< of the source layout; 0: not known
};

/// Members that may still publish a layout rank that is open, ascending; empty: what is missing stays missing.
///
/// Who publishes the name at the step has had its say, and so has who publishes a later one: sources go forward. Members
/// that left or are lost publish nothing until somebody takes their number. All others may, joined or not, but for this:
/// * Where member minus layout rank is the same for all publications of the name, an open rank is awaited from the member at
///   that distance and from nobody else. Readers that never publish would else be waited for until the deadline.
/// * Where the distances differ, a process that waits alone does not wait for itself if as many members have departed as
///   ranks are open.
/// Pure. `records`: live publications of the name, at any step. Cost: O(members + ranks).
std::vector<int> possible_publishers(const Directory& directory, std::span<const wire::PublicationRecord> records,
                                     const Outlook& outlook);

}  // namespace shardwire
