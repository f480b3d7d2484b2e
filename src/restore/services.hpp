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
#include "memory/copier.hpp"
#include "memory/device_copies.hpp"
#include "paths/path_choice.hpp"
#include "peers/source_link.hpp"
#include "restore/cached_restore.hpp"
#include "restore/metadata.hpp"
#include "restore/probe.hpp"
#include "restore/running_restore.hpp"
#include "runtime/clock.hpp"
#include "serve/publication.hpp"
#include "shardwire/options.hpp"

namespace shardwire::telemetry {
class Trace;
}

namespace shardwire::restore {

/// Session-wide figures for reports.
struct SessionFacts {
  std::vector<std::string> transports{};  ///< name and loaded version of each
  ByteCount registered_bytes = 0;
  double registration_seconds = 0;
  ByteCount staging_budget = 0;  ///< of the staging that serves readers
  ByteCount staging_peak = 0;
};

/// Services of the session for one source.
/// Threads: loop thread only, as all of these.
class SourceServices {
 public:
  virtual Clock& clock() = 0;
  /// First request number of one operation: random, far from others on the same link and from overflow.
  virtual std::uint64_t first_request() = 0;
  [[nodiscard]] virtual const FabricTable& fabrics() const = 0;
  virtual void log(LogLevel level, const std::string& text) = 0;

  [[nodiscard]] virtual int member() const = 0;
  /// The connection to the publishing process. Errors: throws Error{peer_lost}.
  virtual std::shared_ptr<SourceLink> link(const wire::PublicationRecord& record) = 0;
  /// This process's own publication under the name; null: none.
  [[nodiscard]] virtual std::shared_ptr<detail::PublicationState> own_publication(const std::string& name) const = 0;
  virtual std::uint64_t lease_own(detail::PublicationState& publication) = 0;
  /// Whether its bytes were unchanged until now.
  virtual bool release_own(std::uint64_t lease) = 0;
  /// Receives the spans of what runs; null: nobody wants them.
  [[nodiscard]] virtual telemetry::Trace* trace() const { return nullptr; }

 protected:
  ~SourceServices() = default;
};

/// Services of the session for a restore.
class Services : public SourceServices {
 public:
  /// Runs `task` in a later loop iteration, unless the session is gone by then.
  virtual void defer(std::function<void()> task) = 0;
  virtual Membership& membership() = 0;
  [[nodiscard]] virtual const Directory& directory() const = 0;
  virtual Metadata& metadata() = 0;
  virtual RestoreCache& cache() = 0;
  virtual memory::Copier& copier() = 0;
  virtual memory::DeviceCopies& copies() = 0;
  [[nodiscard]] virtual const CostModel& costs() const = 0;
  /// Session-wide figures for reports.
  [[nodiscard]] virtual SessionFacts facts() const = 0;
  /// The restore has ended: it is destroyed in a later loop iteration.
  virtual void finished(RunningRestore& restore) = 0;
  /// Null outside of drills.
  [[nodiscard]] virtual Probe* probe() const = 0;
  /// The hosts of this job have keepers: what members have published may be published again once they have gone.
  [[nodiscard]] virtual bool has_keeper() const = 0;
  /// Learns the addresses of these publishers now: the member that knows them may be lost when one has to be read from.
  virtual void look_ahead(std::span<const wire::PublicationRecord> records) = 0;
  /// Logs a warning, unless this session has logged one on that topic.
  virtual void warn_once(const std::string& topic, const std::string& text) = 0;

 protected:
  ~Services() = default;
};

}  // namespace shardwire::restore
