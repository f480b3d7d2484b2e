// SPDX-License-Identifier: Apache-2.0
#include "c/options.hpp"

#include <string>
#include <utility>
#include <vector>

#include "c/callbacks.hpp"
#include "c/handles.hpp"
#include "c/structs.hpp"

namespace shardwire::c_api {
namespace {

// `last`: the last of those that may be asked for; the first is mapped.
template <typename Asked>
std::optional<Asked> method_or_any(shardwire_method method, Asked last) {
  if (method == SHARDWIRE_METHOD_ANY) return std::nullopt;
  return enumerator(method, Asked::mapped, last, "method");
}

Verify verify_of(shardwire_verify verify) {
  return enumerator(verify, Verify::digest, "verify");
}

LogSink log_sink(const shardwire_session_options& given) {
  if (given.log == nullptr) return {};
  return [log = given.log, context = given.log_context](LogLevel level, std::string_view message) {
    called("log", [&] { log(context, static_cast<shardwire_log_level>(level), std::string(message).c_str()); });
  };
}

std::string optional_text(const char* given) {
  return given == nullptr ? std::string() : std::string(given);
}

std::function<bool()> interruption(const shardwire_session_options& given) {
  if (given.interrupted == nullptr) return {};
  return [interrupted = given.interrupted, context = given.interrupted_context] {
    return called("interrupted", [&] { return interrupted(context); });
  };
}

using MetricCallback = void (*)(void* context, const shardwire_metric_update* update);

std::function<void(const MetricUpdate&)> metric_callback(MetricCallback callback, void* context) {
  if (callback == nullptr) return {};
  return [callback, context](const MetricUpdate& update) {
    std::vector<std::pair<std::string, std::string>> texts;
    for (const auto& [key, value] : update.attributes) texts.emplace_back(key, value);
    std::vector<shardwire_metric_attribute> attributes;
    for (const auto& [key, value] : texts) attributes.push_back({key.c_str(), value.c_str()});
    const std::string name(update.name);
    auto given = defaults<shardwire_metric_update>();
    given.name = name.c_str();
    given.value = update.value;
    given.attributes = attributes.data();
    given.attribute_count = attributes.size();
    callback(context, &given);
  };
}

}  // namespace

SessionOptions options_of(const shardwire_session_options* options) {
  const shardwire_session_options given = read_options(options, "session_options");
  SessionOptions out;
  out.transport = text(given.transport, "transport");
  if (given.staging_bytes != SHARDWIRE_UNSET_BYTES) out.staging_bytes = given.staging_bytes;
  if (given.join_timeout_ns != SHARDWIRE_UNSET_NS) out.join_timeout = duration(given.join_timeout_ns);
  out.copy_threads = given.copy_threads;
  out.encrypt_payload = given.encrypt_payload;
  out.keeper = {.job = optional_text(given.keeper_job), .socket = optional_text(given.keeper_socket)};
  out.host_domain = optional_text(given.host_domain);
  if (given.costs) out.costs = *peek(given.costs);
  out.progress.spin = duration(given.spin_ns);
  out.log = log_sink(given);
  out.interrupted = interruption(given);
  out.telemetry = {.counter = metric_callback(given.counter, given.telemetry_context),
                   .gauge = metric_callback(given.gauge, given.telemetry_context),
                   .histogram = metric_callback(given.histogram, given.telemetry_context)};
  return out;
}

PublishOptions options_of(const shardwire_publish_options* options) {
  const shardwire_publish_options given = read_options(options, "publish_options");
  return {.name = text(given.name, "name"),
          .step = given.step,
          .snapshot = snapshot_of(given.snapshot),
          .digest = given.digest != 0,
          .keep = {.steps = given.keep_steps},
          .buddies = given.buddies,
          .buddy_bytes_per_second = given.buddy_bytes_per_second};
}

RestoreOptions options_of(const shardwire_restore_options* options) {
  const shardwire_restore_options given = read_options(options, "restore_options");
  RestoreOptions out;
  out.name = text(given.name, "name");
  out.step = step_of(given.step);
  out.timeout = duration(given.timeout_ns);
  out.staging_bytes = given.staging_bytes;
  out.verify = verify_of(given.verify);
  out.ingress_bytes_per_second = given.ingress_bytes_per_second;
  out.replicas = replicas_of(given.replicas);
  out.method = method_or_any(given.method, RestoreMethod::packed);
  out.bind_only = given.bind_only;
  out.discovery_grace = duration(given.discovery_grace_ns);
  out.notice = duration(given.notice_ns);
  out.step_rule = step_rule_of(given.step_rule);
  out.stop_at_values = given.stop_at_values;
  for (const auto& [event, device] : array(given.done_events, given.done_event_count, "done_events")) {
    out.done_events.push_back({event, device});
  }
  return out;
}

ExchangeOptions options_of(const shardwire_exchange_options* options) {
  const shardwire_exchange_options given = read_options(options, "exchange_options");
  ExchangeOptions out;
  out.timeout = duration(given.timeout_ns);
  out.staging_bytes = given.staging_bytes;
  out.verify = verify_of(given.verify);
  out.ingress_bytes_per_second = given.ingress_bytes_per_second;
  out.replicas = replicas_of(given.replicas);
  out.method = method_or_any(given.method, ExchangeMethod::collective);
  out.communicator = given.communicator;
  return out;
}

void set_defaults(shardwire_session_options& options) {
  options.transport = "";
  options.staging_bytes = SHARDWIRE_UNSET_BYTES;
  options.join_timeout_ns = SHARDWIRE_UNSET_NS;
  options.spin_ns = ProgressMode().spin.count();
}

void set_defaults(shardwire_publish_options& options) {
  options.name = "state";
}

void set_defaults(shardwire_restore_options& options) {
  const RestoreOptions known;
  options.name = "state";
  options.step = SHARDWIRE_UNSET_STEP;
  options.timeout_ns = known.timeout.count();
  options.staging_bytes = known.staging_bytes;
  options.discovery_grace_ns = known.discovery_grace.count();
  options.notice_ns = known.notice.count();
  options.method = SHARDWIRE_METHOD_ANY;
}

void set_defaults(shardwire_exchange_options& options) {
  const ExchangeOptions known;
  options.timeout_ns = known.timeout.count();
  options.staging_bytes = known.staging_bytes;
  options.method = SHARDWIRE_METHOD_ANY;
}

SHARDWIRE_C_BEGIN

void shardwire_session_options_init(shardwire_session_options* options, size_t size) {
  initialize(options, size);
}

void shardwire_publish_options_init(shardwire_publish_options* options, size_t size) {
  initialize(options, size);
}

void shardwire_restore_options_init(shardwire_restore_options* options, size_t size) {
  initialize(options, size);
}

void shardwire_exchange_options_init(shardwire_exchange_options* options, size_t size) {
  initialize(options, size);
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
