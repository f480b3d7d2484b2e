// SPDX-License-Identifier: Apache-2.0
// Jobs under limits of the operating system: they end with an error that names what is short, or take a slower way and
// say so. No crash, no hang.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "support/command.hpp"
#include "support/file.hpp"
#include "support/host.hpp"
#include "support/job.hpp"
#include "support/sanitizer.hpp"

namespace {

using namespace shardwire::test;
using namespace std::chrono_literals;
using Json = nlohmann::json;

// 32 MB of arenas on four ranks.
const char* const rows_to_columns = R"j({
  "states": ["m"], "scalars": {"step": 7}, "tensors": [{"fqn": "w", "shape": [2000, 2000]}],
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";
const char* const few_rows_to_columns = R"j({
  "states": ["m"], "scalars": {"step": 7}, "tensors": [{"fqn": "w", "shape": [200, 200]}],
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";

struct Outcome {
  CommandResult result;
  Json report;
};

using Environment = std::vector<std::pair<std::string, std::string>>;
const Environment by_shared_memory = {{"UCX_TLS", ""}, {"UCX_NET_DEVICES", "lo"}};
const Environment by_tcp = {{"UCX_TLS", "tcp"}, {"UCX_NET_DEVICES", "lo"}};

// The command under a limit of the shell's.
Outcome run_under(const std::string& limit, const char* text, const Environment& environment,
                  std::vector<std::string> more = {}) {
  const File file("case.json", text);
  const File report("report.json");
  std::vector<std::string> words{"/bin/sh",      "-c",       limit + "; exec \"$0\" \"$@\"",
                                 command_path(), "run",      file.path(),
                                 "--transport",  "ucx",      "--deadline",
                                 "10",           "--report", report.path()};
  words.insert(words.end(), more.begin(), more.end());
  CommandResult result = RunningCommand(std::move(words), "", environment).wait(100s);
  return {std::move(result), report.json()};
}

// Started as by a launcher, on a host with little shared memory: nobody has counted beforehand what the job takes.
Outcome run_on_host(const std::string& shared_memory, const char* text) {
  const File file("case.json", text);
  const File report("report.json");
  const Host host{.network = {}, .shared_memory = shared_memory, .ranks = {0, 1, 2, 3}};
  Environment environment = by_shared_memory;
  environment.insert(
      environment.end(),
      {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"SHARDWIRE_PORT", std::to_string(free_port())}});
  RunningCommand command(host.command({command_path(), "run", file.path(), "--transport", "ucx", "--deadline", "5",
                                       "--report", report.path()}),
                         "", environment);
  CommandResult result = command.wait(100s);
  return {std::move(result), report.json()};
}

void check_orderly(const Outcome& outcome) {
  BOOST_TEST(!outcome.result.timed_out);
  BOOST_TEST(outcome.result.exit_code >= 0);
  BOOST_TEST(outcome.result.err.find("signal") == std::string::npos, outcome.result.err);
}

bool says(const Outcome& outcome, const std::string& text) {
  return (outcome.result.out + outcome.result.err).find(text) != std::string::npos;
}

boost::test_tools::assertion_result hosts_can_be_made(boost::unit_test::test_unit_id) {
  const auto [can, why] = can_make_hosts();
  boost::test_tools::assertion_result result(can);
  result.message() << why;
  return result;
}

// From too few for the command itself, over too few to open the fabric, to too few for all peers.
// The address sanitizer itself needs a few for its checks, and reports nonsense without.
const std::vector<int> descriptor_limits =
    with_address_sanitizer ? std::vector{16, 28, 40, 46, 52} : std::vector{6, 10, 16, 28, 40, 46, 52};

}  // namespace

BOOST_AUTO_TEST_SUITE(limits)

BOOST_DATA_TEST_CASE(too_few_file_descriptors_are_named, boost::unit_test::data::make(descriptor_limits), limit) {
  for (const Environment& environment : {by_shared_memory, by_tcp}) {
    const Outcome outcome = run_under("ulimit -n " + std::to_string(limit), rows_to_columns, environment);
    check_orderly(outcome);
    if (outcome.result.exit_code == 0 && limit > 40) continue;  // it may just do
    BOOST_TEST(outcome.result.exit_code == 1, outcome.result.err);
    BOOST_TEST((says(outcome, "file descriptors") || says(outcome, "pen files")), outcome.result.err);
  }
}

BOOST_AUTO_TEST_CASE(enough_file_descriptors_are_enough) {
  for (const Environment& environment : {by_shared_memory, by_tcp}) {
    const Outcome outcome = run_under("ulimit -n 128", rows_to_columns, environment);
    check_orderly(outcome);
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  }
}

BOOST_AUTO_TEST_CASE(memory_that_may_not_be_locked_does_not_matter) {
  for (const Environment& environment : {by_shared_memory, by_tcp}) {
    const Outcome outcome = run_under("ulimit -l 0", rows_to_columns, environment);
    check_orderly(outcome);
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
    BOOST_TEST(outcome.report["verified"] == true);
  }
}

BOOST_AUTO_TEST_CASE(staging_of_less_than_one_element_is_refused_where_staging_is_needed) {
  const std::vector<std::string> staging{"--staging", "2"};
  const Outcome mapped = run_under(":", few_rows_to_columns, by_shared_memory, staging);
  check_orderly(mapped);
  BOOST_TEST(mapped.result.exit_code == 0, mapped.result.err);
  BOOST_TEST(mapped.report["staging"]["peak"] == 0);
  const Outcome packed = run_under(":", few_rows_to_columns, by_tcp, staging);
  check_orderly(packed);
  BOOST_TEST(packed.result.exit_code == 1);
  BOOST_TEST(packed.report["errors"][0]["code"] == "out_of_resources");
  BOOST_TEST(says(packed, "one element of 4 bytes"), packed.result.err);
}

// Two halves, one for each side of a rank: from one element to a few rows of 200 bytes.
BOOST_DATA_TEST_CASE(staging_of_one_small_slot_is_enough, boost::unit_test::data::make({8, 100, 4096}), bytes) {
  const Outcome outcome =
      run_under(":", few_rows_to_columns, by_tcp, {"--staging", std::to_string(bytes), "--verify", "digest"});
  check_orderly(outcome);
  BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  BOOST_REQUIRE(outcome.report.is_object());
  BOOST_TEST(outcome.report["staging"]["peak"] <= bytes);
  BOOST_TEST(outcome.report["staging"]["peak"] > 0);
}

BOOST_AUTO_TEST_CASE(the_size_of_the_folder_of_shared_memory_does_not_matter,
                     *boost::unit_test::precondition(hosts_can_be_made)) {
  const File file("case.json", rows_to_columns);
  const Host host{.network = {}, .shared_memory = "1M", .ranks = {0}};
  for (const char* command : {"run", "perf"}) {
    RunningCommand running(host.command({"/usr/bin/env", "-u", "RANK", command_path(), command, file.path()}));
    const CommandResult result = running.wait();
    BOOST_TEST(result.exit_code == 0, result.err);
  }
}

BOOST_AUTO_TEST_CASE(members_without_shared_memory_go_over_the_network_and_say_why,
                     *boost::unit_test::precondition(hosts_can_be_made)) {
  // Too little for UCX's queue of any rank; or for the queue or the first buffers of whichever rank comes last to it.
  using Reasons = std::vector<std::string>;
  for (const auto& [size, reasons] :
       {std::pair{"4k", Reasons{"receive FIFO"}}, {"2M", Reasons{"receive FIFO", "receive descriptor"}}}) {
    const Outcome outcome = run_on_host(size, few_rows_to_columns);
    check_orderly(outcome);
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
    BOOST_REQUIRE(outcome.report.is_object());
    BOOST_TEST(outcome.report["verified"] == true);
    BOOST_TEST(outcome.report["ways"]["mapped"] == 0);
    BOOST_TEST(says(outcome, "this fabric does not map: "), outcome.result.out);
    BOOST_TEST(std::any_of(reasons.begin(), reasons.end(), [&](const auto& reason) { return says(outcome, reason); }),
               outcome.result.out);
  }
}

BOOST_AUTO_TEST_CASE(arenas_that_do_not_fit_are_an_error_that_says_what_is_left,
                     *boost::unit_test::precondition(hosts_can_be_made)) {
  const Outcome outcome = run_on_host("28M", rows_to_columns);
  check_orderly(outcome);
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_TEST(says(outcome, "cannot allocate a region of 4000000 bytes"), outcome.result.err);
  BOOST_TEST(says(outcome, "/dev/shm"), outcome.result.err);
}

BOOST_AUTO_TEST_SUITE_END()
