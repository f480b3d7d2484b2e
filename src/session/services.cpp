// SPDX-License-Identifier: Apache-2.0
#include "session/services.hpp"

#include <utility>

#include "session/core.hpp"

namespace shardwire {

Clock& CoreServices::clock() {
  return core_.loop();
}

std::uint64_t CoreServices::first_request() {
  return (core_.loop().random_number() >> 1) | 1;
}

const FabricTable& CoreServices::fabrics() const {
  return core_.fabric_table();
}

void CoreServices::log(LogLevel level, const std::string& text) {
  core_.log(level, text);
}

int CoreServices::member() const {
  return core_.member();
}

std::shared_ptr<SourceLink> CoreServices::link(const wire::PublicationRecord& record) {
  return core_.links().link(record);
}

std::shared_ptr<detail::PublicationState> CoreServices::own_publication(const std::string& name) const {
  return core_.publisher().live(name);
}

std::uint64_t CoreServices::lease_own(detail::PublicationState& publication) {
  return core_.publisher().lease_own(publication);
}

bool CoreServices::release_own(std::uint64_t lease) {
  return core_.publisher().release_own(lease);
}

void CoreServices::defer(std::function<void()> task) {
  core_.defer(std::move(task));
}

Membership& CoreServices::membership() {
  return core_.membership();
}

const Directory& CoreServices::directory() const {
  return core_.directory();
}

restore::Metadata& CoreServices::metadata() {
  return core_.metadata();
}

restore::RestoreCache& CoreServices::cache() {
  return core_.restore_cache();
}

memory::Copier& CoreServices::copier() {
  return core_.copier();
}

memory::DeviceCopies& CoreServices::copies() {
  return core_.copies();
}

const CostModel& CoreServices::costs() const {
  return core_.costs();
}

restore::SessionFacts CoreServices::facts() const {
  const auto registration = core_.memory().registration();
  return {.transports = core_.fabrics().versions(),
          .registered_bytes = registration.bytes,
          .registration_seconds = registration.seconds,
          .staging_budget = core_.publisher().serving().staging().budget_bytes(),
          .staging_peak = core_.publisher().serving().staging().peak_bytes()};
}

void CoreServices::look_ahead(std::span<const wire::PublicationRecord> records) {
  core_.links().look_ahead(records);
}

void CoreServices::warn_once(const std::string& topic, const std::string& text) {
  core_.warn_once(topic, text);
}

void CoreServices::finished(RunningRestore& restore) {
  core_.finished(restore);
}

bool CoreServices::has_keeper() const {
  return core_.has_keeper();
}

telemetry::Trace* CoreServices::trace() const {
  return core_.trace();
}

restore::Probe* CoreServices::probe() const {
  return core_.probe();
}

}  // namespace shardwire
