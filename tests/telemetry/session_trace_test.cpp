// SPDX-License-Identifier: Apache-2.0
// The files that sessions write where SHARDWIRE_TRACE names one.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/deadline.hpp"
#include "support/fake_root.hpp"
#include "support/job.hpp"
#include "support/launch_variables.hpp"
#include "telemetry/two_shards.hpp"

BOOST_AUTO_TEST_SUITE(session_trace)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

/// Files that sessions write, and their spans.
class Traces {
 public:
  explicit Traces(const std::string& below = "")
      : environment_(
            {{"SHARDWIRE_TRACE", root_.path.string() + below + "/trace.json"}, {"SHARDWIRE_RUN_ID", "night"}}) {}

  [[nodiscard]] std::filesystem::path path(int member) const {
    return root_.path / ("trace-" + std::to_string(member) + ".json");
  }
  [[nodiscard]] json content(int member) const {
    std::ifstream file(path(member));
    return json::parse(file);
  }
  [[nodiscard]] std::vector<json> spans(int member, const std::string& name) const {
    std::vector<json> found;
    for (const json all = content(member); const json& event : all.at("traceEvents")) {
      if (event.at("ph") == "X" && event.at("name") == name) found.push_back(event);
    }
    return found;
  }

 private:
  FakeRoot root_;
  Environment environment_;
};

json argument(const json& span, const char* name) {
  return span.at("args").at(name);
}

// By what the span says, and by the length that a viewer shows: whole microseconds.
double seconds(const std::vector<json>& spans) {
  double all = 0;
  for (const json& span : spans) {
    const double one = argument(span, "seconds");
    BOOST_TEST(std::abs(one * 1e6 - span.at("dur").get<double>()) <= 1.0, span.dump());
    all += one;
  }
  return all;
}

// Sums of numbers that were printed whole.
void check_same(double traced, double reported) {
  BOOST_TEST(std::abs(traced - reported) <= 1e-8);
}

void check_restore(const Traces& traces, int rank, const RestoreReport& report) {
  const auto restores = traces.spans(rank, "shardwire.restore");
  BOOST_REQUIRE(restores.size() == 1U);
  check_same(seconds(restores), report.seconds.wall - report.seconds.join);
  BOOST_TEST(argument(restores.front(), "shardwire.seconds.join").get<double>() == report.seconds.join);
  check_same(seconds(traces.spans(rank, "shardwire.join")), report.seconds.join);
  BOOST_TEST(argument(restores.front(), "shardwire.operation") == "restore");
  BOOST_TEST(argument(restores.front(), "shardwire.publication.name") == "state");
  BOOST_TEST(argument(restores.front(), "shardwire.step") == 7);
  BOOST_TEST(argument(restores.front(), "shardwire.bytes.needed") == report.needed_bytes);
  BOOST_TEST(argument(restores.front(), "shardwire.bytes.moved") == report.moved_bytes);
  BOOST_TEST(!restores.front().at("args").contains("error.type"));
  const std::pair<const char*, double> stages[] = {{"plan", report.seconds.plan},
                                                   {"bind", report.seconds.bind},
                                                   {"move", report.seconds.move},
                                                   {"verify", report.seconds.verify},
                                                   {"commit", report.seconds.commit}};
  for (const auto& [stage, reported] : stages) {
    BOOST_TEST_CONTEXT(stage) {
      check_same(seconds(traces.spans(rank, std::string("shardwire.restore.") + stage)), reported);
    }
  }
}

// A row of the report is a span.
void check_sources(const Traces& traces, int rank, const RestoreReport& report) {
  const auto moves = traces.spans(rank, "shardwire.source.move");
  BOOST_TEST(moves.size() == report.peers.size());
  for (const PeerReport& peer : report.peers) {
    BOOST_TEST_CONTEXT("source rank " << to_int(peer.rank) << " by " << peer.path) {
      const auto is_of_peer = [&](const json& span) {
        const std::string transport = argument(span, "shardwire.transport");
        const std::string method = argument(span, "shardwire.method");
        return argument(span, "shardwire.source.rank") == to_int(peer.rank) &&
               (transport == method ? method : transport + "/" + method) == peer.path;
      };
      const auto found = std::find_if(moves.begin(), moves.end(), is_of_peer);
      BOOST_REQUIRE(found != moves.end());
      BOOST_TEST(argument(*found, "shardwire.bytes") == peer.bytes);
      BOOST_TEST(argument(*found, "shardwire.seconds.predicted").get<double>() == peer.predicted_seconds);
      check_same(seconds({*found}), peer.measured_seconds);
    }
  }
  // Each source has its life, from its first state to its last.
  const auto lives = traces.spans(rank, "shardwire.source");
  BOOST_TEST(lives.size() == 2U);
  for (const json& life : lives) {
    BOOST_TEST(argument(life, "shardwire.source.end") == "released");
    BOOST_TEST(argument(life, "shardwire.peer.member") == argument(life, "shardwire.source.rank"));
  }
  BOOST_TEST(traces.spans(rank, "shardwire.source.bound").size() == 2U);
  BOOST_TEST(traces.spans(rank, "shardwire.source.leasing").size() == 1U);  // not of this process
}

// Spans of a row lie in one another or apart, and one that contains others stands before them.
void check_rows(const json& content) {
  using Interval = std::pair<std::int64_t, std::int64_t>;
  std::map<int, std::vector<Interval>> rows;
  for (const json& event : content.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const std::int64_t began = event.at("ts");
    const std::int64_t ended = began + event.at("dur").get<std::int64_t>();
    BOOST_TEST(began >= 0);
    for (const auto& [other_began, other_ended] : rows[event.at("tid")]) {
      const bool apart = ended <= other_began || began >= other_ended;
      const bool within = began >= other_began && ended <= other_ended;
      BOOST_TEST((apart || within), event.dump());
    }
    rows[event.at("tid")].emplace_back(began, ended);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(spans_of_a_restore_equal_its_report) {
  const Traces traces;
  const auto port = free_port();
  std::mutex mutex;
  std::map<int, RestoreReport> reports;
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    Shards shards(rank);
    Publication publication = session.publish(shards.source, {.step = 7});
    Restore restore = session.restore(shards.target, within(patience));
    restore.wait();
    const RestoreReport report = restore.report();
    session.gather("restored", {}, patience);
    publication.retire(patience);
    session.close(patience);
    const std::lock_guard lock(mutex);
    reports[rank] = report;
  });
  for (const int rank : {0, 1}) {
    BOOST_TEST_CONTEXT("member " << rank << ": " << traces.content(rank).dump()) {
      check_restore(traces, rank, reports.at(rank));
      check_sources(traces, rank, reports.at(rank));
      check_rows(traces.content(rank));
      const auto published = traces.spans(rank, "shardwire.publish");
      BOOST_REQUIRE(published.size() == 1U);
      BOOST_TEST(argument(published.front(), "shardwire.bytes") == bytes_of_shard);
      BOOST_TEST(argument(published.front(), "shardwire.step") == 7);
    }
  }
  const auto data = [&](int rank) { return traces.content(rank).at("otherData"); };
  BOOST_TEST(data(0).at("shardwire.session") == data(1).at("shardwire.session"));
  BOOST_TEST(data(0).at("shardwire.run.id") == "night");
  // Both processes have one clock. Each knows when the session began, late by its way to member 0, which its call to join spans.
  for (const int rank : {0, 1}) {
    const std::int64_t joined = data(rank).at("shardwire.began_ns").get<std::int64_t>() +
                                std::llround(seconds(traces.spans(rank, "shardwire.join")) * 1e9);
    BOOST_TEST(data(0).at("shardwire.session.began_ns").get<std::int64_t>() <= joined);
    BOOST_TEST(data(rank).at("shardwire.session.began_ns").get<std::int64_t>() <= joined);
  }
}

BOOST_AUTO_TEST_CASE(an_exchange_has_a_span_around_its_restores) {
  const Traces traces;
  const auto port = free_port();
  std::mutex mutex;
  std::map<int, RestoreReport> reports;
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    Shards shards(rank);
    const RestoreReport report = session.exchange(shards.source, shards.target).report;
    session.close(patience);
    const std::lock_guard lock(mutex);
    reports[rank] = report;
  });
  for (const int rank : {0, 1}) {
    BOOST_TEST_CONTEXT("member " << rank << ": " << traces.content(rank).dump()) {
      const auto exchanges = traces.spans(rank, "shardwire.exchange");
      BOOST_REQUIRE(exchanges.size() == 1U);
      BOOST_TEST(argument(exchanges.front(), "shardwire.bytes.needed") == reports.at(rank).needed_bytes);
      BOOST_TEST(argument(exchanges.front(), "shardwire.seconds.wall").get<double>() == reports.at(rank).seconds.wall);
      const auto restores = traces.spans(rank, "shardwire.restore");
      BOOST_TEST(!restores.empty());
      for (const json& restore : restores) BOOST_TEST(argument(restore, "shardwire.operation") == "exchange");
    }
  }
}

BOOST_AUTO_TEST_CASE(failures_have_their_code) {
  const Traces traces;
  ErrorCode of_restore{};
  {
    Session session = Session::join(member(0, 1, free_port()), quick());
    Shards shards(0);
    of_restore = failure_of([&] { session.restore(shards.target, within(1ms)).wait(); }).code();
    failure_of([&] { session.publish(shards.source, {.name = ""}); });
  }  // leaves without close()
  const auto restores = traces.spans(0, "shardwire.restore");
  BOOST_REQUIRE(restores.size() == 1U);
  BOOST_TEST(argument(restores.front(), "error.type") == std::string(to_string(of_restore)));
  const auto published = traces.spans(0, "shardwire.publish");
  BOOST_REQUIRE(published.size() == 1U);
  BOOST_TEST(argument(published.front(), "error.type") == "invalid_argument");
  check_rows(traces.content(0));
}

BOOST_AUTO_TEST_CASE(a_guest_writes_under_the_number_that_it_gets) {
  const Traces traces;
  const auto port = free_port();
  Session member_0 = Session::join(member(0, 1, port), quick());
  Bootstrap bootstrap = member(0, 0, port);
  bootstrap.guest = true;
  Session guest = Session::join(bootstrap, quick());
  const int number = guest.rank();
  guest.close(patience);
  member_0.close(patience);
  BOOST_TEST(traces.spans(number, "shardwire.join").size() == 1U);
  BOOST_TEST(traces.content(number).at("otherData").at("shardwire.member") == number);
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_there_costs_a_warning_and_nothing_else) {
  const Traces traces("/none");
  std::atomic<int> warnings = 0;
  SessionOptions options = quick();
  options.log = [&](LogLevel level, std::string_view text) {
    warnings += level == LogLevel::warning && text.starts_with("the trace is incomplete: ") ? 1 : 0;
  };
  Session session = Session::join(member(0, 1, free_port()), options);
  BOOST_TEST(run_until([] {}, [&] { return warnings > 0; }, 120s));
  restore_alone(session);
  BOOST_TEST(warnings == 1);
}

BOOST_AUTO_TEST_SUITE_END()
