// SPDX-License-Identifier: Apache-2.0
// A session counts its operations if SHARDWIRE_METRICS_FOLDER or SessionOptions::telemetry asks for it.
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <utility>

#include "session/session_state.hpp"
#include "shardwire/version.hpp"
#include "telemetry/metrics_file.hpp"
#include "telemetry/metrics_server.hpp"
#include "wire/messages.hpp"

namespace shardwire::detail {

void SessionState::make_metrics(const Telemetry& callbacks) {
  telemetry::Build build{shardwire::version(), wire::protocol_version, {}};
  for (std::size_t i = 0; i < fabrics->size(); ++i) build.transports.emplace_back((*fabrics)[i].name());
  metrics_ = std::make_shared<telemetry::Metrics>(std::move(build), callbacks);
}

void SessionState::join_and_count(WallClock::time_point began) {
  if (!metrics_) return join(began);
  if (!bootstrap.guest) write_metrics();
  std::exception_ptr failure;
  try {
    join(began);
  } catch (...) {
    failure = std::current_exception();
  }
  metrics_->joined(seconds_of(WallClock::now() - began), telemetry::code_of(failure));
  if (failure) std::rethrow_exception(failure);
  if (bootstrap.guest) write_metrics();
}

void SessionState::write_metrics() {
  if (metrics_at_.folder.empty()) return;
  const auto log = [this](LogLevel level, const std::string& text) {
    const auto open = open_loop();
    if (!open) return;
    open->post([this, level, text] {
      if (core_) core_->log(level, text);
    });
  };
  metrics_file_ = std::make_unique<telemetry::MetricsFile>(
      telemetry::MetricsFile::Setup{.folder = metrics_at_.folder, .run_id = bootstrap.run_id, .member = member()},
      metrics_, [log](const std::string& why) { log(LogLevel::warning, why); });
  if (metrics_at_.port == 0) return;
  try {
    metrics_server_ = std::make_unique<telemetry::MetricsServer>(metrics_at_, log);
  } catch (const std::exception& error) {
    log(LogLevel::warning, fmt::format("metrics are not served: {}", error.what()));
  }
}

std::shared_ptr<PublicationState> SessionState::counted(
    const PublishOptions& options, support::FunctionRef<std::shared_ptr<PublicationState>()> publish) {
  if (!metrics_) return publish();
  static_cast<void>(running());  // in a child of fork() a thread of the parent may hold the lock of the metrics forever
  const auto began = WallClock::now();
  const auto took = [&] { return seconds_of(WallClock::now() - began); };
  const Snapshot snapshot = options.keep.steps > 0 ? Snapshot::copy : options.snapshot;
  try {
    auto publication = publish();
    ByteCount bytes = 0;
    for (const auto& tensor : publication->tensors) bytes += tensor.bytes;
    metrics_->published(publication->generation, snapshot, bytes, publication->step, took());
    return publication;
  } catch (...) {
    metrics_->publish_failed(snapshot, took(), telemetry::code_of(std::current_exception()));
    throw;
  }
}

// The report of an error is that of the step that failed here.
ExchangeResult SessionState::counted_exchange(const Catalog& held, const Catalog& wanted,
                                              const ExchangeOptions& options, Exchanging& host) {
  if (!metrics_) return run_exchange(held, wanted, options, host);
  const auto began = WallClock::now();
  const auto ended = [&](const RestoreReport& report, const std::exception_ptr& error) {
    telemetry::Counted counted;
    metrics_->ended(telemetry::Operation::exchange, seconds_of(WallClock::now() - began), report, error, counted);
  };
  metrics_->started();
  try {
    ExchangeResult result = run_exchange(held, wanted, options, host);
    ended(result.report, nullptr);
    return result;
  } catch (const Error& error) {
    ended(error.report() ? *error.report() : RestoreReport(), std::current_exception());
    throw;
  } catch (...) {
    ended({}, std::current_exception());
    throw;
  }
}

}  // namespace shardwire::detail
