// SPDX-License-Identifier: Apache-2.0
// Sessions write counts to the folder that SHARDWIRE_METRICS_FOLDER names.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "restore/state.hpp"
#include "session/acceptor.hpp"
#include "support/deadline.hpp"
#include "support/fake_root.hpp"
#include "support/http.hpp"
#include "support/job.hpp"
#include "support/launch_variables.hpp"
#include "telemetry/two_shards.hpp"

BOOST_AUTO_TEST_SUITE(session_metrics)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

/// A folder that sessions write to, and what they have written there.
class Written {
 public:
  explicit Written(const std::string& below = "", const std::string& port = "")
      : environment_({{"SHARDWIRE_METRICS_FOLDER", root_.path.string() + below},
                      {"SHARDWIRE_METRICS_PORT", port},
                      {"SHARDWIRE_RUN_ID", "night"}}) {}

  /// Value of a series of a member, without the label of the member; empty: there is none.
  [[nodiscard]] std::optional<double> value(int rank, const std::string& name, const std::string& labels = "") const {
    const std::string wanted =
        name + "{shardwire_member=\"" + std::to_string(rank) + "\"" + (labels.empty() ? "" : ",") + labels + "} ";
    const std::string found = text(rank);
    const auto at = ("\n" + found).find("\n" + wanted);
    return at == std::string::npos ? std::nullopt : std::optional(std::stod(found.substr(at + wanted.size())));
  }
  [[nodiscard]] double sum(int rank, const std::string& name) const {
    std::istringstream lines(text(rank));
    double sum = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name + "{")) sum += std::stod(line.substr(line.rfind(' ')));
    }
    return sum;
  }
  [[nodiscard]] std::string text(int rank) const {
    std::ifstream file(root_.path / ("shardwire-night-" + std::to_string(rank) + ".prom"));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  FakeRoot root_;
  Environment environment_;
};

constexpr ByteCount half = bytes_of_shard;

const std::string restores = "shardwire_restore_duration_seconds_count";

std::string operation(const std::string& name) {
  return "shardwire_operation=\"" + name + "\"";
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_member_that_has_left_leaves_its_counts) {
  const Written written;
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    Shards shards(rank);
    Publication publication = session.publish(shards.source, {.step = 7});
    RestoreOptions plan_alone = within(patience);
    plan_alone.bind_only = true;
    session.restore(shards.target, plan_alone).wait();
    session.restore(shards.target, within(patience)).wait();
    session.gather("restored", {}, patience);
    publication.update(shards.source, 8, Snapshot::copy, patience);
    publication.retire(patience);
    session.close(patience);
  });
  for (const int rank : {0, 1}) {
    BOOST_TEST_CONTEXT("member " << rank << ":\n" << written.text(rank)) {
      BOOST_TEST(written.value(rank, "shardwire_session_join_duration_seconds_count").value_or(-1) == 1);
      BOOST_TEST(written.value(rank, restores, operation("restore")).value_or(-1) == 1);
      BOOST_TEST(written.value(rank, restores, operation("bind")).value_or(-1) == 1);
      BOOST_TEST(written.value(rank, restores, operation("exchange")).value_or(-1) == 0);
      BOOST_TEST(written.value(rank, "shardwire_restore_active").value_or(-1) == 0);
      BOOST_TEST(written.value(rank, "shardwire_restore_needed_bytes_total").value_or(-1) == static_cast<double>(half));
      BOOST_TEST(written.sum(rank, "shardwire_io_bytes_total") ==
                 static_cast<double>(half) + written.sum(rank, "shardwire_restore_overhead_bytes_total"));
      const std::string published = "shardwire_publish_duration_seconds_count";
      BOOST_TEST(written.value(rank, published, R"(shardwire_snapshot="none")").value_or(-1) == 1);
      BOOST_TEST(written.value(rank, published, R"(shardwire_snapshot="copy")").value_or(-1) == 1);
      BOOST_TEST(written.value(rank, "shardwire_retire_duration_seconds_count").value_or(-1) == 2);
      BOOST_TEST(written.value(rank, "shardwire_publication_active").value_or(-1) == 0);
      BOOST_TEST(written.value(rank, "shardwire_publication_step").value_or(-1) == 8);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_exchange_is_one_operation_and_its_own_publication_is_none) {
  const Written written;
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    Shards shards(rank);
    session.exchange(shards.source, shards.target);
    session.close(patience);
  });
  for (const int rank : {0, 1}) {
    BOOST_TEST_CONTEXT("member " << rank << ":\n" << written.text(rank)) {
      BOOST_TEST(written.value(rank, restores, operation("exchange")).value_or(-1) == 1);
      BOOST_TEST(written.value(rank, restores, operation("restore")).value_or(-1) == 0);
      BOOST_TEST(written.value(rank, "shardwire_restore_needed_bytes_total").value_or(-1) == static_cast<double>(half));
      BOOST_TEST(written.sum(rank, "shardwire_publish_duration_seconds_count") == 0);
      BOOST_TEST(written.value(rank, "shardwire_retire_duration_seconds_count").value_or(-1) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(failures_count_under_their_code) {
  const Written written;
  const auto refused_name = [](Session& session, Shards& shards) {
    return failure_of([&] { session.publish(shards.source, {.name = ""}); }).code();
  };
  ErrorCode of_restore{};
  {
    Session session = Session::join(member(0, 1, free_port()), quick());
    Shards shards(0);
    of_restore = failure_of([&] { session.restore(shards.target, within(1ms)).wait(); }).code();
    require(refused_name(session, shards) == ErrorCode::invalid_argument, "a publication has a name");
  }  // leaves without close()
  const auto failed = [](ErrorCode code) { return "error_type=\"" + std::string(to_string(code)) + "\""; };
  BOOST_TEST_CONTEXT(written.text(0)) {
    BOOST_TEST(written.value(0, restores, operation("restore") + "," + failed(of_restore)).value_or(-1) == 1);
    BOOST_TEST(written.value(0, restores, operation("restore")).value_or(-1) == 0);
    BOOST_TEST(written
                   .value(0, "shardwire_publish_duration_seconds_count",
                          R"(shardwire_snapshot="none",)" + failed(ErrorCode::invalid_argument))
                   .value_or(-1) == 1);
  }
  SessionOptions hasty = quick();
  hasty.join_timeout = 50ms;
  const ErrorCode of_join = failure_of([&] { Session::join(member(1, 2, free_port()), hasty); }).code();
  BOOST_TEST(written.value(1, "shardwire_session_join_duration_seconds_count", failed(of_join)).value_or(-1) == 1);
}

BOOST_AUTO_TEST_CASE(a_guest_writes_under_the_number_that_it_gets) {
  const Written written;
  const auto port = free_port();
  Session member_0 = Session::join(member(0, 1, port), quick());
  Bootstrap bootstrap = member(0, 0, port);
  bootstrap.guest = true;
  Session guest = Session::join(bootstrap, quick());
  const int rank = guest.rank();
  BOOST_REQUIRE(rank != 0);
  guest.close(patience);
  member_0.close(patience);
  BOOST_TEST(written.value(rank, "shardwire_session_join_duration_seconds_count").value_or(-1) == 1);
}

BOOST_AUTO_TEST_CASE(processes_that_are_refused_count_by_what_is_not_that_of_the_job) {
  const Written written;
  Bootstrap here = member(0, 2, free_port());
  here.job_key.assign(32, std::byte{1});
  Session session = Session::join(here, quick());
  const auto refused = [&](const std::function<void(Bootstrap&)>& change) {
    Bootstrap there = here;
    there.rank = 1;
    change(there);
    const ErrorCode code = failure_of([&] { Session::join(there, quick()); }).code();
    BOOST_TEST(to_string(code) == to_string(ErrorCode::invalid_argument));
  };
  refused([](Bootstrap& there) { there.job_key.assign(32, std::byte{2}); });
  refused([](Bootstrap& there) { there.run_id = "day"; });
  refused([](Bootstrap& there) { there.world_size = 3; });
  session.close(patience);
  const auto count = [&](const std::string& why) {
    return written.value(0, "shardwire_handshake_rejections_total", "error_type=\"" + why + "\"").value_or(-1);
  };
  BOOST_TEST_CONTEXT(written.text(0)) {
    BOOST_TEST(count("bad_key") >= 1);
    BOOST_TEST(count("run_id") >= 1);
    BOOST_TEST(count("world_size") >= 1);
    BOOST_TEST(count("version") == 0);
    BOOST_TEST(count("unproven_limit") == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_refusal_has_the_first_reason_that_a_connection_checks) {
  using telemetry::Rejection;
  Identity own;
  own.hello.world_size = 2;
  own.hello.run_id = "night";
  wire::Hello other = own.hello;
  const auto why = [&](ErrorCode code) { return rejection_of(own, other, code); };
  BOOST_TEST((why(ErrorCode::transport_failed) == std::nullopt));
  BOOST_TEST((why(ErrorCode::invalid_argument) == Rejection::other_user));
  own.open_network = true;  // the peer has a key
  BOOST_TEST((why(ErrorCode::invalid_argument) == Rejection::bad_key));
  own.open_network = false;
  own.job_key.resize(32);
  BOOST_TEST((why(ErrorCode::invalid_argument) == Rejection::bad_key));
  other.world_size = 0;  // a guest
  BOOST_TEST((why(ErrorCode::invalid_argument) == Rejection::bad_key));
  other.world_size = 3;
  BOOST_TEST((why(ErrorCode::invalid_argument) == Rejection::world_size));
  other.run_id = "day";
  BOOST_TEST((why(ErrorCode::invalid_argument) == Rejection::run_id));
  ++other.version;
  BOOST_TEST((why(ErrorCode::unsupported) == Rejection::version));
}

BOOST_AUTO_TEST_CASE(callbacks_of_the_program_need_no_folder) {
  const Environment environment(std::map<std::string, std::string>{});
  std::map<std::string, int> calls;  // of one thread at a time
  SessionOptions options = quick();
  options.telemetry.histogram = [&](const MetricUpdate& update) { ++calls[std::string(update.name)]; };
  Session session = Session::join(member(0, 1, free_port()), options);
  Catalog source(Rank{0}, 1);
  TestShard held(two_shards, Layout::replicated(), Rank{0});
  held.add_to(source);
  session.publish(source).retire(patience);
  session.close(patience);
  BOOST_TEST(calls.at("shardwire.session.join.duration") == 1);
  BOOST_TEST(calls.at("shardwire.publish.duration") == 1);
  BOOST_TEST(calls.at("shardwire.retire.duration") == 1);
}

BOOST_AUTO_TEST_CASE(one_port_has_the_metrics_of_all_members_until_the_last_has_left) {
  const auto served_at = free_port();
  const Written written("", std::to_string(served_at));
  const auto is_served = [&](int rank) {
    const std::string joined =
        "\nshardwire_session_join_duration_seconds_count{shardwire_member=\"" + std::to_string(rank) + "\"} 1\n";
    const auto has_joined = [&] {
      try {
        return http_answer(served_at, "GET /metrics HTTP/1.1").find(joined) != std::string::npos;
      } catch (const std::runtime_error&) {  // between two members that listen
        return false;
      }
    };
    return run_until([] {}, has_joined, patience);
  };
  const auto port = free_port();
  Session first = Session::join(member(0, 2, port), quick());
  Session last = Session::join(member(1, 2, port), quick());
  BOOST_TEST(is_served(0));
  BOOST_TEST(is_served(1));
  first.close(patience);
  BOOST_TEST(is_served(1));
  last.close(patience);
  BOOST_CHECK_THROW(connection_to(served_at), std::runtime_error);
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_there_costs_a_warning_and_nothing_else) {
  const Written written("/none");
  std::atomic<int> warnings = 0;
  SessionOptions options = quick();
  options.log = [&](LogLevel level, std::string_view text) {
    warnings += level == LogLevel::warning && text.starts_with("metrics are not written: ") ? 1 : 0;
  };
  Session session = Session::join(member(0, 1, free_port()), options);
  BOOST_TEST(run_until([] {}, [&] { return warnings > 0; }, 120s));
  restore_alone(session);
  BOOST_TEST(warnings == 1);
}

// Else the caller would wait forever.
BOOST_AUTO_TEST_CASE(an_exception_of_the_count_comes_out_of_the_wait_unless_the_restore_has_failed) {
  const auto error_of = [](const std::exception_ptr& error) {
    detail::RestoreState state(Interruption(), nullptr, {}, false);
    state.ended = [](const RestoreReport&, const std::exception_ptr&) { throw std::bad_alloc(); };
    BOOST_REQUIRE_NO_THROW(state.finish({}, {}, error));
    state.completion().wait();
  };
  BOOST_CHECK_THROW(error_of(nullptr), std::bad_alloc);
  const Error lost(ErrorCode::peer_lost, "it is gone");
  BOOST_TEST((failure_of([&] { error_of(std::make_exception_ptr(lost)); }).code() == ErrorCode::peer_lost));
}

BOOST_AUTO_TEST_SUITE_END()
