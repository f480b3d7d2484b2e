// SPDX-License-Identifier: Apache-2.0
// Real processes only: deaths of processes, and joins of processes started by a launcher.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "support/command.hpp"
#include "support/file.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(processes)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;

const char* const rows_to_columns = R"j({
  "states": ["m"], "scalars": {"step": 7}, "tensors": [{"fqn": "w", "shape": [2000, 2000]}],
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";

std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  std::vector<pid_t> children;
  for (pid_t child; file >> child;) children.push_back(child);
  return children;
}

using Environment = std::vector<std::pair<std::string, std::string>>;

// The ranks of a job as a launcher starts them; the destructor ends them.
class Launched {
 public:
  Launched(const char* text, int ranks, const std::vector<std::string>& more, const Environment& environment)
      : file_("case.json", text), report_("report.json") {
    const std::string port = std::to_string(free_port());
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> words = {command_path(),         "run",      file_.path(),  "--transport",
                                        transport_under_test(), "--report", report_.path()};
      words.insert(words.end(), more.begin(), more.end());
      Environment own{{"RANK", std::to_string(rank)},
                      {"WORLD_SIZE", std::to_string(ranks)},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"SHARDWIRE_PORT", port}};
      own.insert(own.end(), environment.begin(), environment.end());  // the last value of a name counts
      members_.push_back(std::make_unique<RunningCommand>(std::move(words), "", std::move(own)));
    }
  }
  CommandResult wait(int rank) { return members_[static_cast<std::size_t>(rank)]->wait(); }
  /// Rank 0's report.
  [[nodiscard]] Json report() const { return report_.json(); }

 private:
  File file_;
  File report_;
  std::vector<std::unique_ptr<RunningCommand>> members_;
};

Json run_launched(const char* text, const std::vector<std::string>& more, int exit_code = 0) {
  Launched job(text, 4, more, {});
  for (int rank = 3; rank >= 0; --rank) {
    const CommandResult result = job.wait(rank);
    BOOST_TEST(result.exit_code == exit_code, result.err);
    BOOST_TEST(result.out.empty() == (rank != 0));
  }
  return job.report();
}

const char* const two_ranks = R"j({
  "states": ["m"], "scalars": {"step": 7}, "tensors": [{"fqn": "w", "shape": [200, 300]}],
  "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 2, "rules": {"*": {"mesh": [2], "placements": ["S(1)"]}}}
})j";

// Two processes restore every element; returns rank 1's log.
std::string run_two(Environment environment) {
  environment.emplace_back("SHARDWIRE_LOG", "info");
  Launched job(two_ranks, 2, {}, environment);
  const CommandResult other = job.wait(1);
  const CommandResult first = job.wait(0);
  BOOST_TEST(other.exit_code == 0, other.err);
  BOOST_TEST(first.exit_code == 0, first.err);
  const Json report = job.report();
  BOOST_REQUIRE(report.is_object());
  BOOST_TEST(report["verified"] == true);
  BOOST_TEST(report["elements"] == 200 * 300);
  BOOST_TEST(report["bytes"]["moved"] == 200 * 300 * 4 / 2);
  return other.err;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

boost::test_tools::assertion_result has_ipv6_loopback(boost::unit_test::test_unit_id /*case*/) {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  boost::test_tools::assertion_result result(
      socket >= 0 && ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  if (!result) result.message() << "nothing can listen at ::1 here: " << std::strerror(errno);
  if (socket >= 0) ::close(socket);
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_rank_that_is_killed_is_named_and_the_others_end) {
  const File text("case.json");
  const File report("report.json");
  std::ofstream(text.path()) << rows_to_columns;
  // Each rank moves 3 MB.
  RunningCommand command({command_path(), "run", text.path(), "--transport", transport_under_test(), "--rate", "500K",
                          "--timeout", "45", "--report", report.path()},
                         "", {{"SHARDWIRE_LOG", "info"}});
  BOOST_REQUIRE(command.await_error_text("restore of '", 4));
  const auto ranks = children_of(command.pid());
  BOOST_REQUIRE_EQUAL(ranks.size(), 4U);
  ::kill(ranks[2], SIGKILL);
  const auto began = std::chrono::steady_clock::now();
  const CommandResult result = command.wait();
  BOOST_TEST(!result.timed_out);
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST((std::chrono::steady_clock::now() - began < std::chrono::seconds(30)));
  BOOST_TEST(result.err.find("rank 2 was ended by signal 9") != std::string::npos, result.err);
  const Json written = report.json();
  BOOST_REQUIRE(written.is_object());
  BOOST_TEST(written["verified"] == false);
  int others = 0;
  for (const Json& error : written["errors"]) {
    BOOST_TEST(error["code"] == "peer_lost");
    const bool survivor = error["message"].get<std::string>().find("source rank 2") != std::string::npos;
    others += survivor ? 1 : 0;
    BOOST_TEST(error.contains("gaps") == survivor);  // its data is lost
    if (!survivor) continue;
    for (const Json& gap : error["gaps"]) BOOST_TEST(gap["offset"][0].get<int>() / 500 == 2);
  }
  BOOST_TEST(others == (maps_arenas() ? 0 : 3));  // each survivor names the lost rank, or has read on in its memory
}

// Killed as soon as the process is visible; if it has joined by then, the job ends as early.
BOOST_DATA_TEST_CASE(a_rank_that_is_killed_while_it_joins_ends_the_job_in_seconds, boost::unit_test::data::make({0, 3}),
                     rank) {
  const File text("case.json", rows_to_columns);
  const File report("report.json");
  RunningCommand command({command_path(), "run", text.path(), "--transport", transport_under_test(), "--rate", "20K",
                          "--report", report.path()});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::vector<pid_t> ranks;
  // A list read while processes start and end may be inconsistent, and may begin with the process that probed the
  // transports.
  const auto seen = [&] { return ranks.size() >= 4 && children_of(command.pid()) == ranks; };
  while (!seen() && std::chrono::steady_clock::now() < end) ranks = children_of(command.pid());
  BOOST_REQUIRE_EQUAL(ranks.size(), 4U);
  BOOST_REQUIRE(::kill(ranks[static_cast<std::size_t>(rank)], SIGKILL) == 0);
  const CommandResult result = command.wait(std::chrono::seconds(25));
  BOOST_TEST(!result.timed_out);
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(result.err.find("rank " + std::to_string(rank) + " was ended by signal 9") != std::string::npos,
             result.err);
  const Json written = report.json();
  BOOST_REQUIRE(written.is_object());
  BOOST_TEST(written["verified"] == false);
  BOOST_TEST(written["errors"][0]["code"] == "peer_lost");
}

BOOST_AUTO_TEST_CASE(processes_of_a_launcher_join_each_other_and_rank_0_reports) {
  const Json report = run_launched(rows_to_columns, {});
  BOOST_TEST(report["verified"] == true);
  BOOST_TEST(report["ranks"].size() == 4U);
}

BOOST_AUTO_TEST_CASE(processes_of_a_launcher_take_the_ranks_that_suit_them) {
  const char* const four_to_three = R"j({
    "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}],
    "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
    "target": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}}
  })j";
  const Json report = run_launched(four_to_three, {"--relabel"});
  BOOST_TEST(report["verified"] == true);
  BOOST_TEST(report["bytes"]["moved"] == 32);  // 48 with rank i in process i
  BOOST_TEST(report["bytes"]["local"] == 64);
}

BOOST_AUTO_TEST_CASE(processes_of_a_launcher_tell_rank_0_what_they_miss) {
  const char* const without_rank_3 = R"j({
    "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}, {"fqn": "u", "shape": [8, 2]}],
    "source": {"ranks": 4, "lost": [3], "rules": {"*": {"chunk": 0, "over": 4}}},
    "target": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}}
  })j";
  const Json report = run_launched(without_rank_3, {}, 1);
  BOOST_REQUIRE(report.is_object());
  BOOST_REQUIRE(report["errors"].size() == 1U);
  BOOST_TEST(report["errors"][0]["gaps"] ==
             Json::parse(R"j([{"fqn": "w", "state": "m", "offset": [9, 0], "size": [3, 2], "rank": 3},
                              {"fqn": "u", "state": "m", "offset": [6, 0], "size": [2, 2], "rank": 3}])j"));
}

BOOST_AUTO_TEST_CASE(one_element_tensors_of_lost_ranks_are_missed_too) {
  const char* const all_lost = R"j({
    "states": ["m"], "tensors": [{"fqn": "w", "shape": [4]}, {"fqn": "n", "shape": [1]}],
    "source": {"ranks": 4, "lost": [0, 1, 2, 3], "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 1, "rules": {"*": {"replicated": true}}}
  })j";
  const Json report = run_launched(all_lost, {}, 1);
  BOOST_REQUIRE(report.is_object());
  BOOST_REQUIRE(report["errors"].size() == 1U);
  BOOST_TEST(report["errors"][0]["gaps"] ==
             Json::parse(R"j([{"fqn": "w", "state": "m", "offset": [0], "size": [4], "rank": 0},
                              {"fqn": "n", "state": "m", "offset": [0], "size": [1], "rank": 0}])j"));
}

BOOST_AUTO_TEST_CASE(processes_of_a_launcher_join_over_ipv6, *boost::unit_test::precondition(has_ipv6_loopback)) {
  const std::string log = run_two({{"MASTER_ADDR", "::1"}});
  BOOST_TEST(says(log, "joined at ::1 port "), log);
  BOOST_TEST(says(log, "over lo (::1)"), log);
  if (transport_under_test() == "tcp") BOOST_TEST(says(log, "tcp ::1 -> ::1 (lo)"), log);
}

BOOST_AUTO_TEST_CASE(processes_of_a_launcher_join_over_the_interface_that_is_named) {
  const std::string log = run_two({{"SHARDWIRE_INTERFACE", "lo"}});
  BOOST_TEST(says(log, "over lo (127.0.0.1)"), log);
}

// An interface's IPv4 address comes first, so an IPv6 address shows which setting decided.
BOOST_AUTO_TEST_CASE(the_interface_that_is_named_counts_more_than_the_one_that_reaches_rank_0,
                     *boost::unit_test::precondition(has_ipv6_loopback)) {
  const std::string log = run_two({{"MASTER_ADDR", "::1"}, {"SHARDWIRE_INTERFACE", "lo"}});
  BOOST_TEST(says(log, "joined at ::1 port "), log);
  BOOST_TEST(says(log, "over lo (127.0.0.1)"), log);
}

BOOST_AUTO_TEST_CASE(an_interface_that_is_not_there_is_named_with_those_that_are) {
  Launched job(two_ranks, 2, {}, {{"SHARDWIRE_INTERFACE", "nosuch"}});
  for (const int rank : {0, 1}) {
    const CommandResult result = job.wait(rank);
    BOOST_TEST(!result.timed_out);
    BOOST_TEST(result.exit_code == 1);
    BOOST_TEST(says(result.err, "invalid_argument"), result.err);
    BOOST_TEST(says(result.err, "no network interface 'nosuch' here; there are: "), result.err);
    BOOST_TEST(says(result.err, "lo (127.0.0.1)"), result.err);
  }
}

BOOST_AUTO_TEST_CASE(rank_0_names_a_process_that_has_not_joined_and_prints_no_figures) {
  const CommandResult result = run_command({"run", "-", "--transport", transport_under_test()}, two_ranks,
                                           {{"RANK", "0"},
                                            {"WORLD_SIZE", "2"},
                                            {"MASTER_ADDR", "127.0.0.1"},
                                            {"SHARDWIRE_PORT", std::to_string(free_port())},
                                            {"SHARDWIRE_JOIN_TIMEOUT", "1"}});
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(says(result.err, "timed_out: target rank 0: waited 1 s for member 1 of 2 to join\n"), result.err);
  BOOST_TEST(says(result.out, "0 of 2 target ranks are verified\n"), result.out);
  BOOST_TEST(!says(result.out, " needed = "), result.out);
  BOOST_TEST(!says(result.out, "0.000 s"), result.out);
}

BOOST_AUTO_TEST_CASE(another_world_size_than_the_case_takes_is_bad_usage) {
  const CommandResult result =
      run_command({"run", "-"}, rows_to_columns, {{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}});
  BOOST_TEST(result.exit_code == 2);
  BOOST_TEST(result.err.find("3 processes") != std::string::npos, result.err);
}

BOOST_AUTO_TEST_SUITE_END()
