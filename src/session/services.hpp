// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "restore/services.hpp"

namespace shardwire {

class Core;

/// The part of a session's core that restores use.
/// Threads: loop thread only.
class CoreServices final : public restore::Services {
 public:
  /// Ownership: borrows the core.
  explicit CoreServices(Core& core) : core_(core) {}

  Clock& clock() override;
  std::uint64_t first_request() override;
  [[nodiscard]] const FabricTable& fabrics() const override;
  void log(LogLevel level, const std::string& text) override;
  [[nodiscard]] int member() const override;
  std::shared_ptr<SourceLink> link(const wire::PublicationRecord& record) override;
  [[nodiscard]] std::shared_ptr<detail::PublicationState> own_publication(const std::string& name) const override;
  std::uint64_t lease_own(detail::PublicationState& publication) override;
  bool release_own(std::uint64_t lease) override;

  void defer(std::function<void()> task) override;
  Membership& membership() override;
  [[nodiscard]] const Directory& directory() const override;
  restore::Metadata& metadata() override;
  restore::RestoreCache& cache() override;
  memory::Copier& copier() override;
  memory::DeviceCopies& copies() override;
  [[nodiscard]] const CostModel& costs() const override;
  [[nodiscard]] restore::SessionFacts facts() const override;
  void finished(RunningRestore& restore) override;
  [[nodiscard]] restore::Probe* probe() const override;
  [[nodiscard]] bool has_keeper() const override;
  void look_ahead(std::span<const wire::PublicationRecord> records) override;
  void warn_once(const std::string& topic, const std::string& text) override;
  [[nodiscard]] telemetry::Trace* trace() const override;

 private:
  Core& core_;
};

}  // namespace shardwire
