// SPDX-License-Identifier: Apache-2.0
// Counts of a member, and the text that Prometheus reads.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "telemetry/metrics.hpp"

BOOST_AUTO_TEST_SUITE(metrics)

using namespace shardwire;
using namespace shardwire::telemetry;
using shardwire::telemetry::Operation;  // sessions have another

namespace {

Metrics fresh() {
  return Metrics({"1.2.3", 7, {"tcp", "ucx"}});
}

bool has(const Metrics& metrics, const std::string& line) {
  return ("\n" + metrics.text(3, "night")).find("\n" + line + "\n") != std::string::npos;
}

void ends(Metrics& metrics, Operation operation, const RestoreReport& report, const std::exception_ptr& error,
          Counted& counted) {
  metrics.started();
  metrics.ended(operation, report.seconds.wall, report, error, counted);
}
void ends(Metrics& metrics, Operation operation, const RestoreReport& report,
          const std::exception_ptr& error = nullptr) {
  Counted counted;
  ends(metrics, operation, report, error, counted);
}

PeerReport from(int rank, const std::string& path, ByteCount bytes) {
  PeerReport peer;
  peer.rank = Rank{rank};
  peer.path = path;
  peer.bytes = bytes;
  return peer;
}

RestoreReport report_of_two() {
  RestoreReport report;
  report.needed_bytes = 100;
  report.overread_bytes = 20;
  report.resent_bytes = 3;
  report.seconds.wall = 2;
  report.seconds.plan = 0.5;
  report.seconds.move = 1.5;
  report.peers = {from(0, "local", 10), from(1, "tcp/zcopy", 60), from(2, "tcp/zcopy", 50)};
  return report;
}

const std::string received = R"(shardwire_io_bytes_total{shardwire_member="3",shardwire_direction="receive",)";

}  // namespace

BOOST_AUTO_TEST_CASE(counters_are_there_from_the_start) {
  const Metrics metrics = fresh();
  const std::string member = R"({shardwire_member="3"})";
  for (const char* name :
       {"shardwire_restore_active", "shardwire_restore_needed_bytes_total", "shardwire_restore_gaps_total",
        "shardwire_publication_active", "shardwire_retire_duration_seconds_count"}) {
    BOOST_TEST(has(metrics, name + member + " 0"), name);
  }
  BOOST_TEST(has(metrics, received + R"(shardwire_method="sieved_read",shardwire_transport="ucx"} 0)"));
  BOOST_TEST(has(metrics,
                 R"(shardwire_restore_duration_seconds_count{shardwire_member="3",shardwire_operation="exchange",)"
                 R"(error_type="peer_lost"} 0)"));
  BOOST_TEST(has(metrics, R"(shardwire_build_info{shardwire_member="3",shardwire_protocol_version="7",)"
                          R"(shardwire_transports="tcp,ucx",shardwire_version="1.2.3"} 1)"));
  // 0 would be a step, and a time that is long ago.
  BOOST_TEST(metrics.text(3, "").find("shardwire_restore_slowdown_ratio") == std::string::npos);
  BOOST_TEST(metrics.text(3, "").find("shardwire_publication_step") == std::string::npos);
  BOOST_TEST(metrics.text(3, "").find("shardwire_publication_timestamp") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_restore_counts_its_result_its_stages_and_its_bytes_by_path) {
  Metrics metrics = fresh();
  metrics.started();
  BOOST_TEST(has(metrics, R"(shardwire_restore_active{shardwire_member="3"} 1)"));
  Counted counted;
  metrics.ended(Operation::restore, 2, report_of_two(), nullptr, counted);
  BOOST_TEST(has(metrics, R"(shardwire_restore_active{shardwire_member="3"} 0)"));
  const std::string restore = R"({shardwire_member="3",shardwire_operation="restore"} )";
  BOOST_TEST(has(metrics, "shardwire_restore_duration_seconds_sum" + restore + "2"));
  BOOST_TEST(has(metrics, "shardwire_restore_duration_seconds_count" + restore + "1"));
  const std::string bucket =
      R"(shardwire_restore_duration_seconds_bucket{shardwire_member="3",shardwire_operation="restore",le=)";
  BOOST_TEST(has(metrics, bucket + R"("1"} 0)"));
  BOOST_TEST(has(metrics, bucket + R"("2.5"} 1)"));
  BOOST_TEST(has(metrics, bucket + R"("600"} 1)"));
  BOOST_TEST(has(metrics, bucket + R"("+Inf"} 1)"));
  BOOST_TEST(
      has(metrics, R"(shardwire_restore_stage_duration_seconds_sum{shardwire_member="3",shardwire_stage="move"} 1.5)"));
  BOOST_TEST(
      has(metrics, R"(shardwire_restore_stage_duration_seconds_count{shardwire_member="3",shardwire_stage="join"} 0)"));
  BOOST_TEST(has(metrics, received + R"(shardwire_method="zcopy",shardwire_transport="tcp"} 110)"));
  BOOST_TEST(has(metrics, received + R"(shardwire_method="local",shardwire_transport="local"} 10)"));
  BOOST_TEST(has(metrics, R"(shardwire_restore_needed_bytes_total{shardwire_member="3"} 100)"));
  const std::string overhead =
      R"(shardwire_restore_overhead_bytes_total{shardwire_member="3",shardwire_overhead_reason=)";
  BOOST_TEST(has(metrics, overhead + R"("gap"} 20)"));
  BOOST_TEST(has(metrics, overhead + R"("resend"} 3)"));
}

BOOST_AUTO_TEST_CASE(a_failure_counts_under_its_code_with_the_boxes_that_are_missing) {
  Metrics metrics = fresh();
  const std::vector<Gap> gaps(2, Gap{"w", "", Box::whole({4}), Rank{0}});
  ends(metrics, Operation::exchange, {}, std::make_exception_ptr(Error(ErrorCode::peer_lost, "gone", gaps)));
  const std::string failed = R"({shardwire_member="3",shardwire_operation="exchange",error_type="peer_lost")";
  BOOST_TEST(has(metrics, "shardwire_restore_duration_seconds_count" + failed + "} 1"));
  BOOST_TEST(has(metrics, "shardwire_restore_duration_seconds_bucket" + failed + R"(,le="0.001"} 1)"));
  BOOST_TEST(has(metrics,
                 R"(shardwire_restore_duration_seconds_count{shardwire_member="3",shardwire_operation="exchange"} 0)"));
  BOOST_TEST(has(metrics, R"(shardwire_restore_gaps_total{shardwire_member="3"} 2)"));
  ends(metrics, Operation::restore, {}, std::make_exception_ptr(std::runtime_error("a callback has thrown")));
  BOOST_TEST(has(metrics,
                 R"(shardwire_restore_duration_seconds_count{shardwire_member="3",shardwire_operation="restore",)"
                 R"(error_type="cancelled"} 1)"));
}

BOOST_AUTO_TEST_CASE(bytes_of_a_resumed_restore_count_once) {
  Metrics metrics = fresh();
  Counted counted;
  RestoreReport report = report_of_two();
  report.corrupt.resize(1);
  ends(metrics, Operation::restore, report, std::make_exception_ptr(Error(ErrorCode::corrupt, "differs")), counted);
  report.peers.push_back(from(3, "tcp/zcopy", 40));
  report.resent_bytes += 40;
  ends(metrics, Operation::restore, report, nullptr, counted);
  BOOST_TEST(has(metrics, received + R"(shardwire_method="zcopy",shardwire_transport="tcp"} 150)"));
  BOOST_TEST(has(metrics, R"(shardwire_restore_needed_bytes_total{shardwire_member="3"} 100)"));
  BOOST_TEST(has(metrics, R"(shardwire_verify_mismatches_total{shardwire_member="3",shardwire_verify="digest"} 1)"));
}

BOOST_AUTO_TEST_CASE(the_slowdown_is_that_of_the_latest_restore_that_has_moved_all) {
  Metrics metrics = fresh();
  const std::string slowdown = R"(shardwire_restore_slowdown_ratio{shardwire_member="3"} )";
  RestoreReport report = report_of_two();
  report.methods[Method::zcopy].predicted_seconds = 0.25;
  report.methods[Method::local].predicted_seconds = 0.125;
  ends(metrics, Operation::restore, report);
  BOOST_TEST(has(metrics, slowdown + "4"));
  report.seconds.move = 0.75;
  const auto error = std::make_exception_ptr(Error(ErrorCode::timed_out, "late"));
  ends(metrics, Operation::restore, report, error);
  ends(metrics, Operation::bind, report);
  ends(metrics, Operation::restore, {});  // it had nothing to move
  Counted counted;
  ends(metrics, Operation::restore, report, error, counted);
  ends(metrics, Operation::restore, report, nullptr, counted);  // the same again: it was resumed
  BOOST_TEST(has(metrics, slowdown + "4"));
  ends(metrics, Operation::exchange, report);
  BOOST_TEST(has(metrics, slowdown + "2"));
}

BOOST_AUTO_TEST_CASE(bytes_that_are_only_intended_do_not_count) {
  Metrics metrics = fresh();
  ends(metrics, Operation::bind, report_of_two());
  BOOST_TEST(
      has(metrics, R"(shardwire_restore_duration_seconds_count{shardwire_member="3",shardwire_operation="bind"} 1)"));
  BOOST_TEST(has(metrics, received + R"(shardwire_method="zcopy",shardwire_transport="tcp"} 0)"));
  BOOST_TEST(has(metrics, R"(shardwire_restore_needed_bytes_total{shardwire_member="3"} 0)"));
}

BOOST_AUTO_TEST_CASE(a_path_with_a_reason_that_can_be_removed_is_a_fallback) {
  Metrics metrics = fresh();
  const auto count = [](const std::string& reason, const std::string& transport) {
    return R"(shardwire_path_fallbacks_total{shardwire_member="3",shardwire_path_reason=")" + reason +
           R"(",shardwire_transport=")" + transport + "\"} ";
  };
  BOOST_TEST(has(metrics, count("memlock", "tcp") + "0"));
  BOOST_TEST(has(metrics, count("ptrace_scope", "ucx") + "0"));
  RestoreReport report = report_of_two();
  report.peers[1].fallback_reason = FallbackReason::memlock;
  report.peers[2].fallback_reason = FallbackReason::memlock;
  Counted counted;
  ends(metrics, Operation::restore, report, std::make_exception_ptr(Error(ErrorCode::timed_out, "late")), counted);
  report.peers.push_back(from(3, "tcp/zcopy", 1));
  report.peers.back().fallback_reason = FallbackReason::by_design;
  ends(metrics, Operation::restore, report, nullptr, counted);  // it was resumed
  ends(metrics, Operation::bind, report);
  BOOST_TEST(has(metrics, count("memlock", "tcp") + "2"));
  BOOST_TEST(metrics.text(3, "").find("by_design") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(rejections_count_by_reason) {
  Metrics metrics = fresh();
  const std::string rejections = R"(shardwire_handshake_rejections_total{shardwire_member="3",error_type=)";
  BOOST_TEST(has(metrics, rejections + R"("bad_key"} 0)"));
  metrics.rejected(Rejection::bad_key);
  metrics.rejected(Rejection::unproven_limit);
  metrics.rejected(Rejection::unproven_limit);
  BOOST_TEST(has(metrics, rejections + R"("bad_key"} 1)"));
  BOOST_TEST(has(metrics, rejections + R"("unproven_limit"} 2)"));
}

BOOST_AUTO_TEST_CASE(callbacks_receive_each_change_under_the_name_of_opentelemetry) {
  std::map<std::string, double> sums;
  std::map<std::string, double> latest;
  std::map<std::string, std::vector<double>> observed;
  const auto series = [](const MetricUpdate& one) {
    std::string text(one.name);
    for (const auto& [key, value] : one.attributes) text += " " + std::string(key) + "=" + std::string(value);
    return text;
  };
  Telemetry callbacks;
  callbacks.counter = [&](const MetricUpdate& one) { sums[series(one)] += one.value; };
  callbacks.gauge = [&](const MetricUpdate& one) { latest[series(one)] = one.value; };
  callbacks.histogram = [&](const MetricUpdate& one) { observed[series(one)].push_back(one.value); };
  Metrics metrics({"1.2.3", 7, {"tcp", "ucx"}}, callbacks);
  BOOST_TEST(sums.contains("shardwire.handshake.rejections error.type=bad_key"));
  BOOST_TEST(latest.at("shardwire.build.info shardwire.protocol.version=7 shardwire.transports=tcp,ucx "
                       "shardwire.version=1.2.3") == 1);
  metrics.joined(0.5, ErrorCode::timed_out);
  BOOST_TEST(observed.at("shardwire.session.join.duration error.type=timed_out") == std::vector<double>{0.5});
  ends(metrics, Operation::restore, report_of_two());
  BOOST_TEST(observed.at("shardwire.restore.duration shardwire.operation=restore") == std::vector<double>{2});
  BOOST_TEST(observed.at("shardwire.restore.stage.duration shardwire.stage=move") == std::vector<double>{1.5});
  const std::string io = "shardwire.io shardwire.direction=receive ";
  BOOST_TEST(sums.at(io + "shardwire.method=zcopy shardwire.transport=tcp") == 110);
  BOOST_TEST(sums.at(io + "shardwire.method=read shardwire.transport=ucx") == 0);
  BOOST_TEST(sums.at("shardwire.restore.overhead shardwire.overhead.reason=resend") == 3);
  BOOST_TEST(sums.at("shardwire.restore.active") == 0);
  metrics.published(1, Snapshot::copy, 64, 100, 0.25);
  BOOST_TEST(latest.at("shardwire.publication.step") == 100);
  BOOST_TEST(sums.at("shardwire.publication.size shardwire.snapshot=copy") == 64);
  metrics.left();
  BOOST_TEST(sums.at("shardwire.publication.size shardwire.snapshot=copy") == 0);
  BOOST_TEST(sums.at("shardwire.publication.active") == 0);
  metrics.started();
  BOOST_TEST(sums.at("shardwire.restore.active") == 0);  // the session has ended
}

BOOST_AUTO_TEST_CASE(what_a_callback_throws_is_dropped) {
  Telemetry callbacks;
  callbacks.histogram = [](const MetricUpdate&) { throw std::runtime_error("of the caller"); };
  Metrics metrics({"1.2.3", 7, {"tcp"}}, callbacks);
  metrics.joined(1, std::nullopt);
  BOOST_TEST(has(metrics, R"(shardwire_session_join_duration_seconds_count{shardwire_member="3"} 1)"));
}

BOOST_AUTO_TEST_CASE(a_publication_is_active_until_it_is_retired) {
  Metrics metrics = fresh();
  const std::string active = R"(shardwire_publication_active{shardwire_member="3"} )";
  const std::string size = R"(shardwire_publication_size_bytes{shardwire_member="3",shardwire_snapshot="copy"} )";
  metrics.published(1, Snapshot::copy, 64, 100, 0.25);
  metrics.published(2, Snapshot::copy, 8, 101, 0.25);
  BOOST_TEST(has(metrics, active + "2"));
  BOOST_TEST(has(metrics, size + "72"));
  BOOST_TEST(has(metrics, R"(shardwire_publication_step{shardwire_member="3"} 101)"));
  metrics.retired(1, 0.5, std::nullopt);
  metrics.retired(1, 0.5, std::nullopt);
  metrics.retired(9, 0.5, std::nullopt);  // of the library itself
  BOOST_TEST(has(metrics, active + "1"));
  BOOST_TEST(has(metrics, size + "8"));
  BOOST_TEST(has(metrics, R"(shardwire_retire_duration_seconds_count{shardwire_member="3"} 1)"));
  metrics.publish_failed(Snapshot::none, 1, ErrorCode::out_of_resources);
  BOOST_TEST(has(metrics, R"(shardwire_publish_duration_seconds_count{shardwire_member="3",shardwire_snapshot="none",)"
                          R"(error_type="out_of_resources"} 1)"));
  metrics.left();
  BOOST_TEST(has(metrics, active + "0"));
  BOOST_TEST(has(metrics, size + "0"));
}

BOOST_AUTO_TEST_CASE(the_environment_is_read_at_the_start_alone) {
  ::setenv("OTEL_SERVICE_NAME", "trainer", 1);
  const Metrics named = fresh();
  ::unsetenv("OTEL_SERVICE_NAME");
  const std::string process = R"(target_info{shardwire_member="3",service_name=)";
  BOOST_TEST(named.text(3, "").find(process + R"("trainer",)") != std::string::npos);
  BOOST_TEST(fresh().text(3, "").find(process + R"("shardwire",)") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(each_call_changes_the_version) {
  Metrics metrics = fresh();
  std::set<std::uint64_t> seen{metrics.version()};
  metrics.joined(1, std::nullopt);
  seen.insert(metrics.version());
  metrics.started();
  seen.insert(metrics.version());
  Counted counted;
  metrics.ended(Operation::restore, 1, {}, nullptr, counted);
  seen.insert(metrics.version());
  metrics.published(1, Snapshot::none, 1, 1, 1);
  seen.insert(metrics.version());
  metrics.retired(1, 1, std::nullopt);
  seen.insert(metrics.version());
  metrics.publish_failed(Snapshot::none, 1, std::nullopt);
  seen.insert(metrics.version());
  metrics.rejected(Rejection::version);
  seen.insert(metrics.version());
  metrics.left();
  seen.insert(metrics.version());
  BOOST_TEST(seen.size() == 9u);
}

// `promtool check metrics` checks the same of names. A parser needs the rest.
BOOST_AUTO_TEST_CASE(the_text_has_each_series_once_below_its_family_with_the_member) {
  Metrics metrics = fresh();
  metrics.joined(1, std::nullopt);
  metrics.published(1, Snapshot::none, 1, 1, 1);
  ends(metrics, Operation::restore, report_of_two());
  std::istringstream text(metrics.text(3, "a\"b\\c\ne"));
  std::set<std::string> families;
  std::set<std::string> series;
  std::string family;
  std::string type;
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    words >> first >> second;
    if (first == "#") {
      words >> family;
      if (second == "HELP") BOOST_TEST(families.insert(family).second, line);
      if (second == "TYPE") words >> type;
      continue;
    }
    BOOST_TEST(series.insert(line.substr(0, line.rfind(' '))).second, line);
    BOOST_TEST(line.starts_with(family), line);
    BOOST_TEST((line.find("_total{") != std::string::npos) == (type == "counter"), line);
    BOOST_TEST(line.find("{shardwire_member=\"3\"") != std::string::npos, line);
  }
  BOOST_TEST(families.size() == 19u);
  BOOST_TEST(series.size() < 700u);
  BOOST_TEST(metrics.text(3, "a\"b\\c\ne").find(R"(service_instance_id="a\"b\\c\ne/3")") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
