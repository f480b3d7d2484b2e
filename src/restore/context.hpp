// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control/directory.hpp"
#include "control/membership.hpp"
#include "control/operation.hpp"
#include "memory/copier.hpp"
#include "memory/device_copies.hpp"
#include "paths/path_choice.hpp"
#include "peers/source_link.hpp"
#include "restore/probe.hpp"
#include "runtime/clock.hpp"
#include "serve/publication.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/options.hpp"

namespace shardwire::telemetry {
class Trace;
}
namespace shardwire::move {
class PayloadTable;
}

namespace shardwire::restore {

class RestoreCache;
struct Metadata;

/// Session-wide figures for reports.
struct SessionFacts {
  std::vector<std::string> transports{};  ///< name and loaded version of each
  ByteCount registered_bytes = 0;
  double registration_seconds = 0;
  ByteCount staging_budget = 0;  ///< of the staging that serves readers
  ByteCount staging_peak = 0;
};

/// What one source uses of its session.
/// Threads: loop thread only, as all of these.
struct SourceContext {
  Clock& clock;
  /// First request number of one operation: random, far from those of all others of the session and from overflow.
  std::function<std::uint64_t()> first_request;
  const FabricTable& fabrics;
  std::function<void(LogLevel level, const std::string& text)> log;
  const int& member;  ///< set once the member is seated
  /// The connection to the publishing process. Errors: throws Error{peer_lost}.
  std::function<std::shared_ptr<SourceLink>(const wire::PublicationRecord& record)> link;
  /// This process's own publication under the name; null: none.
  std::function<std::shared_ptr<detail::PublicationState>(const std::string& name)> own_publication;
  std::function<std::uint64_t(detail::PublicationState& publication)> lease_own;
  std::function<bool(std::uint64_t lease)> release_own;  ///< whether its bytes were unchanged until now
  telemetry::Trace* const& trace;  ///< receives the spans of what runs; null: nobody wants them. Set at any time
  LogLevel least_level = LogLevel::debug;  ///< no message below it is wanted

  [[nodiscard]] bool logs(LogLevel level) const { return level >= least_level; }
};

/// What a restore uses of its session.
struct Context : SourceContext {
  /// Runs `task` in a later loop iteration, unless the session is gone by then.
  std::function<void(std::function<void()> task)> defer;
  Membership& membership;
  const Directory& directory;
  Metadata& metadata;
  RestoreCache& cache;
  memory::Copier& copier;
  memory::DeviceCopies& copies;
  move::PayloadTable& payloads;
  const CostModel& costs;
  std::function<SessionFacts()> facts;
  /// The operation has ended: it is destroyed in a later loop iteration.
  std::function<void(Operation& operation)> finished;
  Probe* probe;  ///< null outside of drills
  /// The hosts of this job have keepers: what members have published may be published again once they have gone.
  bool has_keeper;
  /// Learns the addresses of these publishers now: the member that knows them may be lost when one has to be read from.
  std::function<void(std::span<const wire::PublicationRecord> records)> look_ahead;
  /// Logs a warning, unless this session has logged one on that topic.
  std::function<void(const std::string& topic, const std::string& text)> warn_once;
};

}  // namespace shardwire::restore
