// SPDX-License-Identifier: Apache-2.0
// Jobs under limits of the operating system: they end with an error that names the limit, or use a slower path and
// report it. They neither crash nor hang.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "support/command.hpp"
#include "support/control_group.hpp"
#include "support/descriptor_limit.hpp"
#include "support/file.hpp"
#include "support/host.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(limits)

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
// Runs of one element: packed is cheapest unless the memory can be mapped.
const char* const single_elements = R"j({
  "states": ["m"], "scalars": {"step": 7}, "tensors": [{"fqn": "w", "shape": [10000, 4]}],
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";
// 336 MB, once held and once wanted.
const char* const large = R"j({
  "states": ["m"], "scalars": {"step": 7}, "tensors": [{"fqn": "w", "shape": [8192, 10240]}],
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";
// Rank 1 alone holds 629 MB.
const char* const all_with_one = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [1200, 131072]}, {"fqn": "v", "shape": [40], "rule": "v"}],
  "source": {"ranks": 4, "rules": {"*": {"boxes": {"1": [[[0, 0], [1200, 131072]]]}}, "v": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 4, "rules": {"*": {"boxes": {}}, "v": {"chunk": 0, "over": 4}}}
})j";

struct Outcome {
  CommandResult result;
  Json report;
};

const std::string by_shared_memory = "shm,tcp";
const std::string by_tcp = "tcp";

// Runs the command under a limit set by the shell.
Outcome run_under(const std::string& limit, const char* text, const std::string& transports,
                  const std::vector<std::string>& more = {}) {
  const File file("case.json", text);
  const File report("report.json");
  std::vector<std::string> words{"/bin/sh",      "-c",       limit + "; exec \"$0\" \"$@\"",
                                 command_path(), "run",      file.path(),
                                 "--transport",  transports, "--timeout",
                                 "120",          "--report", report.path()};
  words.insert(words.end(), more.begin(), more.end());
  CommandResult result = RunningCommand(std::move(words)).wait(200s);
  return {std::move(result), report.json()};
}

// Started as by a launcher, on a host with little shared memory and without a memory check in advance. Fails too if
// /dev/shm contains anything afterwards.
Outcome run_on_host(const std::string& shared_memory, const char* text, const std::string& first = ":") {
  const File file("case.json", text);
  const File report("report.json");
  const Host host{.network = {}, .shared_memory = shared_memory, .ranks = {0, 1, 2, 3}};
  const std::vector<std::pair<std::string, std::string>> environment{
      {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"SHARDWIRE_PORT", std::to_string(free_port())}};
  const std::string script = first + R"sh(; "$0" "$@" || exit; test -z "$(ls -A /dev/shm)" || exit 98)sh";
  RunningCommand command(host.command({"/bin/sh", "-c", script, command_path(), "run", file.path(), "--transport",
                                       by_shared_memory, "--timeout", "60", "--report", report.path()}),
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

boost::test_tools::assertion_result memory_of_a_group_can_be_limited(boost::unit_test::test_unit_id id) {
  boost::test_tools::assertion_result result = hosts_can_be_made(id);
  if (!result) return result;
  try {
    const ControlGroup group(1 << 30);
    return result;
  } catch (const std::exception& error) {
    boost::test_tools::assertion_result none(false);
    none.message() << "control groups cannot be made here: " << error.what();
    return none;
  }
}

// Too few for the command itself, too few to open the fabrics, too few for all peers.
const std::vector<int> descriptor_limits{6, 10, 16, 28, 40, 46, 52};

}  // namespace

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(descriptors_may_run_out))
BOOST_DATA_TEST_CASE(too_few_file_descriptors_are_named, boost::unit_test::data::make(descriptor_limits), limit) {
  for (const std::string& transports : {by_shared_memory, by_tcp}) {
    const Outcome outcome = run_under("ulimit -n " + std::to_string(limit), rows_to_columns, transports);
    check_orderly(outcome);
    if (outcome.result.exit_code == 0 && limit > 40) continue;  // the limit may just suffice
    // 2 if a requested transport cannot be opened
    BOOST_TEST((outcome.result.exit_code == 1 || outcome.result.exit_code == 2), outcome.result.err);
    BOOST_TEST((says(outcome, "file descriptors") || says(outcome, "pen files")), outcome.result.err);
  }
}

BOOST_AUTO_TEST_CASE(enough_file_descriptors_are_enough) {
  for (const std::string& transports : {by_shared_memory, by_tcp}) {
    const Outcome outcome = run_under("ulimit -n 128", rows_to_columns, transports);
    check_orderly(outcome);
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  }
}

BOOST_AUTO_TEST_CASE(memory_that_may_not_be_locked_does_not_matter) {
  for (const std::string& transports : {by_shared_memory, by_tcp}) {
    const Outcome outcome = run_under("ulimit -l 0", rows_to_columns, transports);
    check_orderly(outcome);
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
    BOOST_TEST(outcome.report["verified"] == true);
  }
}

// Arenas are files, whose size is limited; exceeding it must not end a process by a signal.
BOOST_AUTO_TEST_CASE(arenas_longer_than_files_may_be_are_refused_by_name) {
  const Outcome outcome = run_under("ulimit -f 1000", rows_to_columns, by_shared_memory);
  check_orderly(outcome);
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_TEST(says(outcome, "ulimit -f"), outcome.result.err);
  BOOST_REQUIRE(outcome.report.is_object());
  BOOST_TEST(outcome.report["errors"][0]["code"] == "out_of_resources");
}

BOOST_AUTO_TEST_CASE(staging_of_less_than_one_element_is_refused_where_staging_is_needed) {
  const std::vector<std::string> staging{"--staging", "2"};
  const Outcome mapped = run_under(":", single_elements, by_shared_memory, staging);
  check_orderly(mapped);
  BOOST_TEST(mapped.result.exit_code == 0, mapped.result.err);
  BOOST_TEST(mapped.report["staging"]["peak"] == 0);
  const Outcome packed = run_under(":", single_elements, by_tcp, staging);
  check_orderly(packed);
  BOOST_TEST(packed.result.exit_code == 1);
  BOOST_TEST(packed.report["errors"][0]["code"] == "out_of_resources");
  BOOST_TEST(says(packed, "one element of 4 bytes"), packed.result.err);
}

// Each side of a rank gets one half: from one element to many.
BOOST_DATA_TEST_CASE(staging_of_one_small_slot_is_enough, boost::unit_test::data::make({8, 100, 4096}), bytes) {
  const Outcome outcome =
      run_under(":", single_elements, by_tcp, {"--staging", std::to_string(bytes), "--verify", "digest"});
  check_orderly(outcome);
  BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  BOOST_REQUIRE(outcome.report.is_object());
  BOOST_TEST(outcome.report["staging"]["peak"] <= bytes);
  BOOST_TEST(outcome.report["staging"]["peak"] > 0);
  BOOST_TEST(outcome.report["registration"]["bytes"].is_number());
  BOOST_TEST(outcome.report["registration"]["seconds"].is_number());
}

// The default size in containers, and almost nothing.
BOOST_AUTO_TEST_CASE(the_size_of_dev_shm_does_not_matter, *boost::unit_test::precondition(hosts_can_be_made)) {
  for (const char* size : {"64M", "4k"}) {
    const Outcome outcome = run_on_host(size, large);
    check_orderly(outcome);
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
    BOOST_REQUIRE(outcome.report.is_object());
    BOOST_TEST(outcome.report["verified"] == true);
    const Json& methods = outcome.report["methods"];
    BOOST_TEST(methods["mapped"].get<double>() + methods["read"].get<double>() ==
                   outcome.report["bytes"]["moved"].get<double>(),
               methods.dump());
    BOOST_TEST(outcome.report["bytes"]["moved"] > 200e6);
  }
}

BOOST_AUTO_TEST_CASE(a_command_that_starts_its_ranks_itself_does_not_ask_for_the_size_of_dev_shm,
                     *boost::unit_test::precondition(hosts_can_be_made)) {
  const File file("case.json", rows_to_columns);
  const Host host{.network = {}, .shared_memory = "4k", .ranks = {0}};
  RunningCommand command(host.command(
      {"/usr/bin/env", "-u", "RANK", command_path(), "run", file.path(), "--transport", by_shared_memory}));
  const CommandResult result = command.wait();
  BOOST_TEST(result.exit_code == 0, result.err);
  BOOST_TEST(result.out.find("shm/mapped") != std::string::npos, result.out);
}

BOOST_AUTO_TEST_CASE(arenas_that_do_not_fit_into_the_control_group_are_an_error_that_says_what_is_left,
                     *boost::unit_test::precondition(memory_of_a_group_can_be_limited)) {
  const ControlGroup group(400 << 20);
  const Outcome outcome = run_on_host("64M", all_with_one, group.enter());
  check_orderly(outcome);
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_TEST(says(outcome, "cannot allocate a region of 6291456"), outcome.result.err);
  BOOST_TEST(says(outcome, "the memory limit of control group"), outcome.result.err);
}

BOOST_AUTO_TEST_SUITE_END()
