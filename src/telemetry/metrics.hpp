// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwire/error.hpp"
#include "shardwire/options.hpp"
#include "shardwire/report.hpp"

namespace shardwire::telemetry {

/// Of a series: names and values.
using Labels = std::vector<std::pair<std::string, std::string>>;

/// Upper bounds of the buckets of durations, in seconds. A last bucket has no bound.
inline constexpr std::array bucket_bounds = {0.001, 0.005, 0.01, 0.05, 0.1,  0.25,  0.5,   1.0,
                                             2.5,   5.0,   10.0, 30.0, 60.0, 120.0, 300.0, 600.0};

struct Histogram {
  std::array<std::uint64_t, bucket_bounds.size()> buckets{};  ///< at most the bound, and more than the one before
  std::uint64_t count = 0;
  double sum = 0;

  void observe(double seconds);
};

/// Operations of callers. `bind` is a restore with RestoreOptions::bind_only.
enum class Operation : std::uint8_t { restore, exchange, bind };

/// Figures of a restore that have been counted. The report of a resumed restore includes them again.
struct Counted {
  ByteCount needed_bytes = 0;
  ByteCount overread_bytes = 0;
  ByteCount resent_bytes = 0;
  std::size_t corrupt = 0;
  std::map<std::string, ByteCount> bytes;  ///< by PeerReport::path
  std::map<Labels, std::size_t> fallbacks;
};

/// Why a connection of another process was closed before it had proven that it belongs to the job.
enum class Rejection : std::uint8_t { bad_key, other_user, run_id, world_size, version, unproven_limit };

/// Code of the error that ended an operation; empty: none did. An exception of the caller's own counts as cancelled.
std::optional<ErrorCode> code_of(const std::exception_ptr& error);

/// The build of the library, and its transports.
struct Build {
  std::string version;
  std::uint32_t protocol_version = 0;
  std::vector<std::string> transports;  ///< names of the open ones
};

/// Counters of one member, from its join to its end. All begin at 0, but the slowdown, and the step and the time of a
/// publication, are absent until there is one.
/// Threads: any.
class Metrics {
 public:
  /// `callbacks`: receive each change.
  explicit Metrics(Build build, Telemetry callbacks = {});

  void joined(double seconds, std::optional<ErrorCode> error);

  /// A restore or an exchange begins. Requires: ended() follows.
  void started();
  /// `report`: of the operation, or what is known of it. `seconds`: from the call. `counted`: of this operation, kept for the case
  /// that it is resumed.
  void ended(Operation operation, double seconds, const RestoreReport& report, const std::exception_ptr& error,
             Counted& counted);

  /// `generation`: names the publication among those of this member.
  void published(std::uint64_t generation, Snapshot snapshot, ByteCount bytes, std::int64_t step, double seconds);
  void publish_failed(Snapshot snapshot, double seconds, std::optional<ErrorCode> error);
  /// Does nothing for a generation that published() has not counted. `error`: readers held it until the timeout.
  void retired(std::uint64_t generation, double seconds, std::optional<ErrorCode> error);
  /// This member has closed a connection.
  void rejected(Rejection why);
  /// The member has left: nothing runs and nothing is published any more. Drops the callbacks.
  void left();

  /// Changes with each of the calls above.
  [[nodiscard]] std::uint64_t version() const;
  /// In the text format of Prometheus. `member`: label of every series. Guests know their number once they have joined.
  [[nodiscard]] std::string text(int member, std::string_view run_id) const;

 private:
  struct Live {
    Snapshot snapshot;
    ByteCount bytes;
  };

  // Their nodes stay where they are.
  using Series = std::map<Labels, double>::value_type;
  using Durations = std::map<Labels, Histogram>::value_type;

  // Of one series, which is 0 before. Require: the lock.
  Series& series(std::string_view name, const Labels& labels);
  Durations& durations(std::string_view name, const Labels& labels);
  Series& received(const std::string& path);
  // They tell the callbacks. Require: the lock.
  void add(std::string_view name, Series& of, double amount);
  void set(std::string_view name, Series& of, double value);
  void observe(std::string_view name, Durations& of, double seconds);
  void add(std::string_view name, const Labels& labels, double amount) { add(name, series(name, labels), amount); }
  void set(std::string_view name, const Labels& labels, double value) { set(name, series(name, labels), value); }
  void observe(std::string_view name, const Labels& labels, double seconds) {
    observe(name, durations(name, labels), seconds);
  }
  void note_slowdown(const RestoreReport& report);
  void count_bytes(const RestoreReport& report, Counted& counted);
  void count_fallbacks(const RestoreReport& report, Counted& counted);

  const Build build_;
  const std::string service_;  // the program may change its environment while a thread writes the text
  mutable std::mutex mutex_;
  std::uint64_t version_ = 0;                              // guarded by mutex_, as all that follows
  std::map<std::string, std::map<Labels, double>> plain_;  // counters and gauges, by name
  std::map<std::string, std::map<Labels, Histogram>> histograms_;
  std::map<std::uint64_t, Live> live_;  // publications, by generation
  // Series that restores change.
  Series* active_ = nullptr;
  Series* needed_ = nullptr;
  Series* overread_ = nullptr;
  Series* resent_ = nullptr;
  Series* mismatches_ = nullptr;
  Series* slowdown_ = nullptr;               // null: nothing has moved yet
  std::map<std::string, Series*> received_;  // by PeerReport::path
  std::array<Durations*, 3> successes_{};    // by Operation
  std::array<Durations*, 6> stages_{};
  Telemetry callbacks_;  // empty once the member has left
};

}  // namespace shardwire::telemetry
