// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "support/environment.hpp"
#include "support/host_name.hpp"
#include "support/removable.hpp"

namespace shardwire::telemetry {

namespace {

enum class Type : std::uint8_t { counter, gauge, histogram };

struct Family {
  std::string_view name;
  Type type;
  std::string_view help;
};

// Names hold once they are in a release.
constexpr std::string_view restore_duration = "shardwire_restore_duration_seconds";
constexpr std::string_view stage_duration = "shardwire_restore_stage_duration_seconds";
constexpr std::string_view restore_active = "shardwire_restore_active";
constexpr std::string_view io_bytes = "shardwire_io_bytes_total";
constexpr std::string_view needed_bytes = "shardwire_restore_needed_bytes_total";
constexpr std::string_view overhead_bytes = "shardwire_restore_overhead_bytes_total";
constexpr std::string_view restore_slowdown = "shardwire_restore_slowdown_ratio";
constexpr std::string_view restore_gaps = "shardwire_restore_gaps_total";
constexpr std::string_view verify_mismatches = "shardwire_verify_mismatches_total";
constexpr std::string_view path_fallbacks = "shardwire_path_fallbacks_total";
constexpr std::string_view publish_duration = "shardwire_publish_duration_seconds";
constexpr std::string_view retire_duration = "shardwire_retire_duration_seconds";
constexpr std::string_view publication_active = "shardwire_publication_active";
constexpr std::string_view publication_size = "shardwire_publication_size_bytes";
constexpr std::string_view publication_step = "shardwire_publication_step";
constexpr std::string_view publication_timestamp = "shardwire_publication_timestamp_seconds";
constexpr std::string_view join_duration = "shardwire_session_join_duration_seconds";
constexpr std::string_view handshake_rejections = "shardwire_handshake_rejections_total";
constexpr std::string_view build_info = "shardwire_build_info";
constexpr std::string_view target_info = "target_info";

constexpr Family families[] = {
    {restore_duration, Type::histogram, "Duration of restores and exchanges; error_type is absent on success"},
    {stage_duration, Type::histogram, "Duration of the stages of restores and exchanges"},
    {restore_active, Type::gauge, "Restores and exchanges that run"},
    {io_bytes, Type::counter, "Bytes of tensors that this member received, by path"},
    {needed_bytes, Type::counter, "Bytes that restores and exchanges wanted"},
    {overhead_bytes, Type::counter, "Bytes that moved beyond those wanted: gaps between runs, and bytes moved again"},
    {restore_slowdown, Type::gauge, "Measured over predicted seconds of moving, of the latest restore or exchange"},
    {restore_gaps, Type::counter, "Boxes that had not arrived when a restore or an exchange failed"},
    {verify_mismatches, Type::counter, "Boxes that differed from what was published"},
    {path_fallbacks, Type::counter,
     "Paths that were taken because a better one was not there, by a reason that can be removed"},
    {publish_duration, Type::histogram, "Duration of publish() and update(); error_type is absent on success"},
    {retire_duration, Type::histogram, "From the withdrawal of a publication until its last reader has gone"},
    {publication_active, Type::gauge, "Publications that are not retired"},
    {publication_size, Type::gauge, "Bytes of the publications that are not retired"},
    {publication_step, Type::gauge, "Step of the latest publication"},
    {publication_timestamp, Type::gauge, "Time of the latest publication, in seconds since 1970"},
    {join_duration, Type::histogram, "Duration of joining; error_type is absent on success"},
    {handshake_rejections, Type::counter,
     "Connections that this member closed because they did not prove to be of its job"},
    {build_info, Type::gauge, "The build of the library and the transports that are open; always 1"},
    {target_info, Type::gauge, "The process that wrote this file; always 1"},
};

constexpr std::string_view type_names[] = {"counter", "gauge", "histogram"};
constexpr std::string_view operation_names[] = {"restore", "exchange", "bind"};
constexpr std::string_view rejection_names[] = {"bad_key",    "other_user", "run_id",
                                                "world_size", "version",    "unproven_limit"};
constexpr Snapshot snapshots[] = {Snapshot::none, Snapshot::copy};

struct StageName {
  std::string_view name;
  double StageSeconds::*seconds;
};
constexpr StageName stages[] = {{"join", &StageSeconds::join},     {"plan", &StageSeconds::plan},
                                {"bind", &StageSeconds::bind},     {"move", &StageSeconds::move},
                                {"verify", &StageSeconds::verify}, {"commit", &StageSeconds::commit}};

std::string in_quotes(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text += '"';
}

Labels label(std::string_view name, std::string_view value) {
  return {{std::string(name), std::string(value)}};
}

constexpr std::string_view error_label = "error_type";

Labels with_error(Labels labels, std::optional<ErrorCode> error) {
  if (error) labels.emplace_back(error_label, to_string(*error));
  return labels;
}

Labels operation_label(Operation operation) {
  return label("shardwire_operation", operation_names[static_cast<std::size_t>(operation)]);
}

Labels snapshot_label(Snapshot snapshot) {
  return label("shardwire_snapshot", snapshot == Snapshot::copy ? "copy" : "none");
}

// Of a PeerReport: "local" or "<transport>/<method>".
Labels io_labels(std::string_view path) {
  const std::size_t slash = path.find('/');
  const std::string_view method = slash == std::string_view::npos ? path : path.substr(slash + 1);
  return {{"shardwire_direction", "receive"},
          {"shardwire_method", std::string(method)},
          {"shardwire_transport", std::string(path.substr(0, slash))}};
}

Labels fallback_labels(std::string_view transport, FallbackReason reason) {
  return {{"shardwire_path_reason", std::string(to_string(reason))}, {"shardwire_transport", std::string(transport)}};
}

// Returns by how much `now` exceeds `counted`, and raises `counted` to it.
template <typename Number>
double growth(Number now, Number& counted) {
  const Number before = std::exchange(counted, std::max(now, counted));
  return static_cast<double>(counted - before);
}

Labels process_labels(const std::string& service, int member, std::string_view run_id) {
  return {{"service_name", service},
          {"service_instance_id", fmt::format("{}/{}", run_id, member)},
          {"host_name", support::host_name()},
          {"process_pid", std::to_string(::getpid())}};
}

// Of OpenTelemetry: shardwire_io_bytes_total is shardwire.io.
std::string name_with_dots(std::string_view name) {
  for (const std::string_view end : {"_total", "_seconds", "_bytes", "_ratio"}) {
    if (name.ends_with(end)) name.remove_suffix(end.size());
  }
  std::string with_dots(name);
  std::replace(with_dots.begin(), with_dots.end(), '_', '.');
  return with_dots;
}

void tell(const std::function<void(const MetricUpdate&)>& callback, std::string_view name, const Labels& labels,
          double value) {
  if (!callback) return;
  const std::string with_dots = name_with_dots(name);
  std::vector<std::string> keys;
  for (const auto& [key, of] : labels) keys.push_back(name_with_dots(key));
  MetricUpdate update{.name = with_dots, .value = value};
  for (std::size_t i = 0; i < labels.size(); ++i) update.attributes.push_back({keys[i], labels[i].second});
  try {
    callback(update);
  } catch (...) {
  }
}

class Text {
 public:
  explicit Text(int member) : member_(fmt::format("shardwire_member=\"{}\"", member)) {}

  void family(const Family& one) {
    fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", one.name, one.help,
                   type_names[static_cast<std::size_t>(one.type)]);
  }
  void add(std::string_view name, const Labels& labels, double value) {
    fmt::format_to(std::back_inserter(text_), "{}{{{}", name, member_);
    for (const auto& [key, of] : labels) fmt::format_to(std::back_inserter(text_), ",{}={}", key, in_quotes(of));
    fmt::format_to(std::back_inserter(text_), "}} {}\n", value);
  }
  void add(std::string_view name, const Labels& labels, const Histogram& of) {
    const std::string buckets = fmt::format("{}_bucket", name);
    const auto bucket = [&](std::string bound, std::uint64_t below) {
      Labels with_bound = labels;
      with_bound.emplace_back("le", std::move(bound));
      add(buckets, with_bound, static_cast<double>(below));
    };
    // Each kind of failure has its zeros in the total alone: most never happen.
    const bool brief = of.count == 0 && !labels.empty() && labels.back().first == error_label;
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < bucket_bounds.size() && !brief; ++i) {
      below += of.buckets[i];
      bucket(fmt::format("{}", bucket_bounds[i]), below);
    }
    bucket("+Inf", of.count);
    add(fmt::format("{}_sum", name), labels, of.sum);
    add(fmt::format("{}_count", name), labels, static_cast<double>(of.count));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string member_;
  std::string text_;
};

}  // namespace

void Histogram::observe(double seconds) {
  const auto bound = std::ranges::lower_bound(bucket_bounds, seconds);
  if (bound != bucket_bounds.end()) ++buckets[static_cast<std::size_t>(bound - bucket_bounds.begin())];
  ++count;
  sum += seconds;
}

std::optional<ErrorCode> code_of(const std::exception_ptr& error) {
  if (!error) return std::nullopt;
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.code();
  } catch (...) {
    return ErrorCode::cancelled;
  }
}

// Zeros, so that a rate is seen from the first event on.
Metrics::Metrics(Build build, Telemetry callbacks)
    : build_(std::move(build)),
      service_(support::variable("OTEL_SERVICE_NAME").value_or("shardwire")),
      callbacks_(std::move(callbacks)) {
  const auto histogram = [this](std::string_view name, const Labels& labels) {
    auto& of = histograms_[std::string(name)];
    of.try_emplace(labels);
    if (name == stage_duration) return;
    for (auto code = ErrorCode::invalid_argument; code <= ErrorCode::corrupt;
         code = static_cast<ErrorCode>(static_cast<int>(code) + 1)) {
      of.try_emplace(with_error(labels, code));
    }
  };
  const auto zero = [this](std::string_view name, const Labels& labels) { add(name, labels, 0); };
  for (const Operation one : {Operation::restore, Operation::exchange, Operation::bind}) {
    histogram(restore_duration, operation_label(one));
    successes_[static_cast<std::size_t>(one)] = &durations(restore_duration, operation_label(one));
  }
  for (std::size_t i = 0; i < std::size(stages); ++i) {
    const Labels stage = label("shardwire_stage", stages[i].name);
    histogram(stage_duration, stage);
    stages_[i] = &durations(stage_duration, stage);
  }
  for (const Snapshot snapshot : snapshots) {
    histogram(publish_duration, snapshot_label(snapshot));
    zero(publication_size, snapshot_label(snapshot));
  }
  histogram(retire_duration, {});
  histogram(join_duration, {});
  for (const auto name : {restore_active, needed_bytes, restore_gaps, publication_active}) zero(name, {});
  for (const auto reason : {"gap", "resend"}) zero(overhead_bytes, label("shardwire_overhead_reason", reason));
  zero(verify_mismatches, label("shardwire_verify", "digest"));
  zero(io_bytes, io_labels("local"));
  for (const std::string& transport : build_.transports) {
    for (const Method method : {Method::mapped, Method::read, Method::sieved_read, Method::zcopy, Method::packed}) {
      zero(io_bytes, io_labels(fmt::format("{}/{}", transport, to_string(method))));
    }
  }
  for (const std::string& transport : build_.transports) {
    for (std::size_t reason = 0; reason < fallback_reason_count; ++reason) {
      const auto one = static_cast<FallbackReason>(reason);
      if (support::is_removable(one)) zero(path_fallbacks, fallback_labels(transport, one));
    }
  }
  zero(path_fallbacks, fallback_labels("local", FallbackReason::no_peer_access));
  for (const std::string_view name : rejection_names) zero(handshake_rejections, label("error_type", name));
  active_ = &series(restore_active, {});
  needed_ = &series(needed_bytes, {});
  overread_ = &series(overhead_bytes, label("shardwire_overhead_reason", "gap"));
  resent_ = &series(overhead_bytes, label("shardwire_overhead_reason", "resend"));
  mismatches_ = &series(verify_mismatches, label("shardwire_verify", "digest"));
  set(build_info,
      {{"shardwire_protocol_version", std::to_string(build_.protocol_version)},
       {"shardwire_transports", fmt::format("{}", fmt::join(build_.transports, ","))},
       {"shardwire_version", build_.version}},
      1);
}

Metrics::Series& Metrics::series(std::string_view name, const Labels& labels) {
  return *plain_[std::string(name)].try_emplace(labels).first;
}

Metrics::Durations& Metrics::durations(std::string_view name, const Labels& labels) {
  return *histograms_[std::string(name)].try_emplace(labels).first;
}

Metrics::Series& Metrics::received(const std::string& path) {
  Series*& known = received_[path];
  if (known == nullptr) known = &series(io_bytes, io_labels(path));
  return *known;
}

void Metrics::add(std::string_view name, Series& of, double amount) {
  of.second += amount;
  tell(callbacks_.counter, name, of.first, amount);
}

void Metrics::set(std::string_view name, Series& of, double value) {
  of.second = value;
  tell(callbacks_.gauge, name, of.first, value);
}

void Metrics::observe(std::string_view name, Durations& of, double seconds) {
  of.second.observe(seconds);
  tell(callbacks_.histogram, name, of.first, seconds);
}

void Metrics::joined(double seconds, std::optional<ErrorCode> error) {
  const std::lock_guard lock(mutex_);
  ++version_;
  observe(join_duration, with_error({}, error), seconds);
}

void Metrics::started() {
  const std::lock_guard lock(mutex_);
  ++version_;
  add(restore_active, *active_, 1);
}

void Metrics::ended(Operation operation, double seconds, const RestoreReport& report, const std::exception_ptr& error,
                    Counted& counted) {
  const std::lock_guard lock(mutex_);
  ++version_;
  add(restore_active, *active_, -1);
  const auto code = code_of(error);
  observe(restore_duration,
          code ? durations(restore_duration, with_error(operation_label(operation), code))
               : *successes_[static_cast<std::size_t>(operation)],
          seconds);
  for (std::size_t i = 0; i < std::size(stages); ++i) {
    // An operation that never came to a stage has no duration of it.
    if (const double took = report.seconds.*stages[i].seconds; took > 0) observe(stage_duration, *stages_[i], took);
  }
  if (operation != Operation::bind) {  // whose bytes are intended ones
    // A resumed restore has the predictions of all its attempts, and the seconds of the last.
    if (!error && counted.bytes.empty()) note_slowdown(report);
    count_bytes(report, counted);
    count_fallbacks(report, counted);
  }
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& known) {
    add(restore_gaps, {}, static_cast<double>(known.gaps().size()));
  } catch (...) {  // the caller's own
  }
}

void Metrics::note_slowdown(const RestoreReport& report) {
  double predicted = 0;
  report.methods.each([&](Method, const MethodReport& row) { predicted += row.predicted_seconds; });
  if (predicted <= 0) return;
  if (slowdown_ == nullptr) slowdown_ = &series(restore_slowdown, {});
  set(restore_slowdown, *slowdown_, report.seconds.move / predicted);
}

void Metrics::count_bytes(const RestoreReport& report, Counted& counted) {
  add(needed_bytes, *needed_, growth(report.needed_bytes, counted.needed_bytes));
  add(overhead_bytes, *overread_, growth(report.overread_bytes, counted.overread_bytes));
  add(overhead_bytes, *resent_, growth(report.resent_bytes, counted.resent_bytes));
  add(verify_mismatches, *mismatches_, growth(report.corrupt.size(), counted.corrupt));
  std::map<std::string, ByteCount> bytes;
  for (const PeerReport& peer : report.peers) bytes[peer.path] += peer.bytes;
  for (const auto& [path, now] : bytes) add(io_bytes, received(path), growth(now, counted.bytes[path]));
}

void Metrics::count_fallbacks(const RestoreReport& report, Counted& counted) {
  std::map<Labels, std::size_t> fallbacks;
  for (const PeerReport& peer : report.peers) {
    if (!support::is_removable(peer.fallback_reason)) continue;
    ++fallbacks[fallback_labels(std::string_view(peer.path).substr(0, peer.path.find('/')), peer.fallback_reason)];
  }
  for (const auto& [labels, now] : fallbacks) add(path_fallbacks, labels, growth(now, counted.fallbacks[labels]));
}

void Metrics::published(std::uint64_t generation, Snapshot snapshot, ByteCount bytes, std::int64_t step,
                        double seconds) {
  const std::lock_guard lock(mutex_);
  ++version_;
  live_[generation] = {snapshot, bytes};
  observe(publish_duration, snapshot_label(snapshot), seconds);
  add(publication_active, {}, 1);
  add(publication_size, snapshot_label(snapshot), static_cast<double>(bytes));
  set(publication_step, {}, static_cast<double>(step));
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  set(publication_timestamp, {}, std::chrono::duration<double>(since_1970).count());
}

void Metrics::publish_failed(Snapshot snapshot, double seconds, std::optional<ErrorCode> error) {
  const std::lock_guard lock(mutex_);
  ++version_;
  observe(publish_duration, with_error(snapshot_label(snapshot), error), seconds);
}

void Metrics::retired(std::uint64_t generation, double seconds, std::optional<ErrorCode> error) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(generation);
  if (found == live_.end()) return;
  ++version_;
  observe(retire_duration, with_error({}, error), seconds);
  add(publication_active, {}, -1);
  add(publication_size, snapshot_label(found->second.snapshot), -static_cast<double>(found->second.bytes));
  live_.erase(found);
}

void Metrics::rejected(Rejection why) {
  const std::lock_guard lock(mutex_);
  ++version_;
  add(handshake_rejections, label("error_type", rejection_names[static_cast<std::size_t>(why)]), 1);
}

void Metrics::left() {
  const std::lock_guard lock(mutex_);
  ++version_;
  live_.clear();
  for (const auto name : {restore_active, publication_active, publication_size}) {
    for (Series& one : plain_[std::string(name)]) {
      if (one.second != 0) add(name, one, -one.second);
    }
  }
  callbacks_ = {};
}

std::uint64_t Metrics::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

std::string Metrics::text(int member, std::string_view run_id) const {
  Text text(member);
  const std::lock_guard lock(mutex_);
  for (const Family& one : families) {
    const auto series = plain_.find(std::string(one.name));
    const auto histograms = histograms_.find(std::string(one.name));
    if (one.name == target_info) {
      text.family(one);
      text.add(one.name, process_labels(service_, member, run_id), 1);
    } else if (series != plain_.end()) {
      text.family(one);
      for (const auto& [labels, value] : series->second) text.add(one.name, labels, value);
    } else if (histograms != histograms_.end()) {
      text.family(one);
      for (const auto& [labels, of] : histograms->second) text.add(one.name, labels, of);
    }
  }
  return text.take();
}

}  // namespace shardwire::telemetry
