// SPDX-License-Identifier: Apache-2.0
// A session counts its operations if SHARDWIRE_METRICS_FOLDER or SessionOptions::telemetry asks for it, and keeps the spans of its
// calls if SHARDWIRE_TRACE does.
#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "handles/session_state.hpp"
#include "shardwire/version.hpp"
#include "telemetry/metrics_file.hpp"
#include "telemetry/metrics_server.hpp"
#include "telemetry/profiler_range.hpp"
#include "wire/messages.hpp"

namespace shardwire::detail {

namespace {

using Attributes = std::vector<telemetry::Attribute>;

void add_error(Attributes& attributes, std::optional<ErrorCode> code) {
  if (code) attributes.push_back({"error.type", to_string(*code)});
}

// `bytes`: of the publication, if there is no `code`.
Attributes attributes_of(const PublishOptions& options, Snapshot snapshot, ByteCount bytes,
                         std::optional<ErrorCode> code) {
  Attributes attributes{{"shardwire.publication.name", options.name},
                        {"shardwire.step", options.step},
                        {"shardwire.snapshot", snapshot == Snapshot::copy ? "copy" : "none"}};
  if (!code) attributes.push_back({"shardwire.bytes", static_cast<std::int64_t>(bytes)});
  add_error(attributes, code);
  return attributes;
}

Attributes attributes_of(const RestoreReport& report, std::optional<ErrorCode> code) {
  Attributes attributes{{"shardwire.bytes.needed", static_cast<std::int64_t>(report.needed_bytes)},
                        {"shardwire.bytes.moved", static_cast<std::int64_t>(report.moved_bytes)},
                        {"shardwire.seconds.wall", report.seconds.wall}};
  add_error(attributes, code);
  return attributes;
}

}  // namespace

void SessionState::make_metrics(const Telemetry& callbacks) {
  telemetry::Build build{shardwire::version(), wire::protocol_version, {}};
  for (std::size_t i = 0; i < fabrics->size(); ++i) build.transports.emplace_back((*fabrics)[i].name());
  metrics_ = std::make_shared<telemetry::Metrics>(std::move(build), callbacks);
}

void SessionState::join_and_count(WallClock::time_point began) {
  const telemetry::ProfilerRange range("shardwire.join");
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
  const auto log = logger();
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

std::function<void(LogLevel level, const std::string& text)> SessionState::logger() {
  return [this](LogLevel level, const std::string& text) {
    const auto open = open_loop();
    if (!open) return;
    open->post([this, level, text] {
      if (core_) core_->log(level, text);
    });
  };
}

void SessionState::begin_trace(WallClock::time_point began) {
  if (trace_file_.empty()) return;
  telemetry::Trace::Setup setup{.path = telemetry::trace_file_name(trace_file_, member()),
                                .run_id = bootstrap.run_id,
                                .member = member(),
                                .began = began};
  loop_->call([&] {
    setup.session = core_->session_number();
    setup.session_began = core_->session_began();
  });
  trace_ = std::make_shared<telemetry::Trace>(
      std::move(setup), [log = logger()](const std::string& why) { log(LogLevel::warning, why); });
  const auto took =
      std::chrono::duration_cast<WallClock::duration>(std::chrono::duration<double>(join_seconds_.load()));
  trace_->add("join", {{"shardwire.join", began, began + took}});
  loop_->call([&] { core_->use_trace(trace_.get()); });
}

std::shared_ptr<PublicationState> SessionState::counted(
    const PublishOptions& options, support::FunctionRef<std::shared_ptr<PublicationState>()> publish) {
  const telemetry::ProfilerRange range("shardwire.publish");
  if (!metrics_ && !trace_) return publish();
  static_cast<void>(running());  // in a child of fork() a thread of the parent may hold the locks of both forever
  const auto began = WallClock::now();
  const Snapshot snapshot = options.keep.steps > 0 ? Snapshot::copy : options.snapshot;
  std::shared_ptr<PublicationState> publication;
  std::exception_ptr failure;
  try {
    publication = publish();
  } catch (...) {
    failure = std::current_exception();
  }
  const auto ended = WallClock::now();
  const auto code = telemetry::code_of(failure);
  ByteCount bytes = 0;
  if (publication) {
    for (const auto& tensor : publication->tensors) bytes += tensor.bytes;
  }
  if (metrics_ && publication) {
    metrics_->published(publication->generation, snapshot, bytes, publication->step, seconds_of(ended - began));
  } else if (metrics_) {
    metrics_->publish_failed(snapshot, seconds_of(ended - began), code);
  }
  if (trace_) {
    trace_->add("publish", {{"shardwire.publish", began, ended}}, attributes_of(options, snapshot, bytes, code));
  }
  if (failure) std::rethrow_exception(failure);
  return publication;
}

// The report of an error is that of the step that failed here.
ExchangeResult SessionState::counted_exchange(const Catalog& held, const Catalog& wanted,
                                              const ExchangeOptions& options, const ExchangeContext& context) {
  const telemetry::ProfilerRange range("shardwire.exchange");
  if (!metrics_ && !trace_) return run_exchange(held, wanted, options, context);
  const auto began = WallClock::now();
  const auto ended = [&](const RestoreReport& report, const std::exception_ptr& error) {
    const auto now = WallClock::now();
    telemetry::Counted counted;
    if (metrics_) {
      metrics_->ended(telemetry::Operation::exchange, seconds_of(now - began), report, error, counted);
    }
    if (trace_) {
      trace_->add("exchange", {{"shardwire.exchange", began, now}}, attributes_of(report, telemetry::code_of(error)));
    }
  };
  if (metrics_) metrics_->started();
  try {
    ExchangeResult result = run_exchange(held, wanted, options, context);
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
