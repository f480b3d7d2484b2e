// SPDX-License-Identifier: Apache-2.0
// Bytes, methods and files in the output of `shardwire perf`. Times are not judged here.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "move/tuning.hpp"
#include "shardwire/costs.hpp"
#include "support/command.hpp"
#include "support/job.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(perf_command)

namespace {

using namespace shardwire;
using namespace shardwire::test;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

const char* const two_ranks = R"j({"name": "square", "states": ["master"], "tensors": [{"fqn": "w", "shape": [64, 64]}],
  "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}}}})j";

// TEST_TRANSPORT: the transports of this variant of the test.
std::string transport() {
  return std::getenv("TEST_TRANSPORT");
}
bool has_processes() {
  return transport() != "loopback";
}

boost::test_tools::assertion_result with_processes(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(has_processes());
  result.message() << "loopback joins threads of one process";
  return result;
}
boost::test_tools::assertion_result over(const char* name) {
  boost::test_tools::assertion_result result(transport() == name);
  result.message() << "belongs to the variant of " << name;
  return result;
}
boost::test_tools::assertion_result over_shared_memory(boost::unit_test::test_unit_id) {
  return over("shm,tcp");
}
boost::test_tools::assertion_result over_tcp(boost::unit_test::test_unit_id) {
  return over("tcp");
}
boost::test_tools::assertion_result over_tcp_with_ucx(boost::unit_test::test_unit_id id) {
  if (transport() != "tcp") return over_tcp(id);
  boost::test_tools::assertion_result result(std::getenv("TEST_UCX") != nullptr);
  result.message() << "the build has no UCX";
  return result;
}
boost::test_tools::assertion_result over_tcp_with_libfabric(boost::unit_test::test_unit_id id) {
  if (transport() != "tcp") return over_tcp(id);
  boost::test_tools::assertion_result result(std::getenv("TEST_LIBFABRIC") != nullptr);
  result.message() << "the build has no libfabric";
  return result;
}
boost::test_tools::assertion_result with_mpi(boost::unit_test::test_unit_id id) {
  if (!has_processes()) return with_processes(id);
  boost::test_tools::assertion_result result(std::getenv("TEST_MPI") != nullptr);
  result.message() << "the build has found no Open MPI (Debian: libopenmpi-dev, openmpi-bin)";
  return result;
}

struct TemporaryFile {
  std::string path =
      (std::filesystem::temp_directory_path() / ("shardwire-perf-test-" + std::to_string(::getpid()))).string();
  ~TemporaryFile() { std::remove(path.c_str()); }
  [[nodiscard]] std::string text() const {
    std::ifstream file(path);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
};

std::vector<Json> rows_of(const std::string& text) {
  std::vector<Json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

CommandResult perf(Words words, const std::string& input = "",
                   std::vector<std::pair<std::string, std::string>> environment = {}) {
  words.insert(words.begin(), "perf");
  return run_command(std::move(words), input, std::move(environment));
}

// `out` has what one terminal shows of both streams.
CommandResult perf_on_a_terminal(const Words& words) {
  Words all{"/usr/bin/python3", "-c",
            "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))", command_path(),
            "perf"};
  all.insert(all.end(), words.begin(), words.end());
  return RunningCommand(std::move(all)).wait();
}

// Checks all that a row promises, whatever the measurement.
void check_row(const Json& row, int processes) {
  for (const char* field : {"name", "options", "commit", "machine", "versions", "seconds", "seconds_min", "seconds_max",
                            "bytes_per_second", "cpu_seconds", "stages", "outside_move", "staging", "costs"}) {
    BOOST_TEST(row.contains(field), field << " is missing");
  }
  BOOST_TEST(row.at("versions").contains("fabric"));
  BOOST_TEST(row.at("processes") == processes);
  BOOST_TEST(row.at("seconds_min") <= row.at("seconds"));
  BOOST_TEST(row.at("seconds") <= row.at("seconds_max"));
  const Json& bytes = row.at("bytes");
  const auto number = [&](const char* name) { return bytes.at(name).get<std::uint64_t>(); };
  BOOST_TEST(number("moved") + number("local") == number("needed") + number("extra"));
  if (row.at("methods").at("sieved_read") == 0) BOOST_TEST(row.at("delivered_over_needed") == 1.0);
  std::uint64_t by_method = 0;
  for (const auto& [method, moved] : row.at("methods").items()) by_method += moved.get<std::uint64_t>();
  BOOST_TEST(by_method == number("moved") + number("local"));
  BOOST_TEST(row.at("elements").get<std::uint64_t>() * 4 == number("needed"));
  BOOST_TEST(row.at("staging").at("peak") <= row.at("staging").at("budget"));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_sweep_has_a_row_for_each_run_length_and_method) {
  const CommandResult result =
      perf({"--runs", "256,1K,..,16K", "--bytes", "64K", "--ranks", "3", "--repeats", "2", "--transport", transport()});
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  std::map<std::string, std::set<std::uint64_t>> runs;
  for (const Json& row : rows_of(result.out)) {
    check_row(row, 3);
    const std::string method = row.at("method");
    BOOST_TEST(row.at("bytes").at("needed") == 3 * 65536);
    // Only one method is used.
    BOOST_TEST(row.at("methods").at(method) ==
               row.at("bytes").at("needed").get<std::uint64_t>() + row.at("bytes").at("extra").get<std::uint64_t>());
    BOOST_TEST(row.at("bytes").at("local") == (method == "local" ? 3 * 65536 : 0));
    BOOST_TEST(row.at("bound").is_string());
    BOOST_TEST(row.at("against").at("memcpy").at("ratio") == row.at("ratio"));
    BOOST_TEST(runs[method].insert(row.at("run_bytes").get<std::uint64_t>()).second);
  }
  const std::set<std::uint64_t> all{256, 1024, 4096, 16384};
  for (const auto& [method, lengths] : runs) BOOST_TEST(lengths == all, method);
  const std::vector<std::string> possible = transport() == "tcp" ? std::vector<std::string>{"local", "zcopy", "packed"}
                                                                 : std::vector<std::string>{"local", "mapped"};
  for (const std::string& method : possible) BOOST_TEST(runs.count(method) == 1, method);
}

BOOST_AUTO_TEST_CASE(what_is_local_can_be_measured_alone) {
  const CommandResult result =
      perf({"--runs", "256,4K", "--bytes", "64K", "--repeats", "1", "--method", "local", "--transport", transport()});
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const auto rows = rows_of(result.out);
  BOOST_TEST(rows.size() == 2U);
  for (const Json& row : rows) BOOST_TEST(row.at("method") == "local");
}

BOOST_AUTO_TEST_CASE(a_terminal_has_the_table_alone_and_json_the_rows_alone) {
  Words words{"--runs", "4K", "--bytes", "64K", "--repeats", "1", "--method", "local", "--transport", transport()};
  const CommandResult table = perf_on_a_terminal(words);
  BOOST_REQUIRE_MESSAGE(table.exit_code == 0, table.out);
  BOOST_TEST(table.out.find("processes, ") != std::string::npos, table.out);
  BOOST_TEST(table.out.find('{') == std::string::npos, table.out);
  words.emplace_back("--json");
  for (const CommandResult& rows : {perf_on_a_terminal(words), perf(words)}) {
    BOOST_REQUIRE_MESSAGE(rows.exit_code == 0, rows.out + rows.err);
    BOOST_TEST(count(rows.out, "\"run_bytes\"") == 1U);
    BOOST_TEST((rows.out + rows.err).find("processes, ") == std::string::npos, rows.out + rows.err);
  }
}

BOOST_AUTO_TEST_CASE(a_case_has_one_row_and_its_bytes_add_up) {
  for (const bool disjoint : {false, true}) {
    const TemporaryFile output;
    Words words{"-",  "--repeats", "1",         "--transport", transport(), "--target",
                "T0", "--output",  output.path, "--verify",    "digest"};
    if (disjoint) words.emplace_back("--disjoint");
    const CommandResult result = perf(words, two_ranks);
    BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    BOOST_TEST(result.out == "");
    const auto rows = rows_of(output.text());
    BOOST_REQUIRE(rows.size() == 1);
    check_row(rows[0], disjoint ? 4 : 2);
    BOOST_TEST(rows[0].at("name") == "shardwire perf square");
    BOOST_TEST(rows[0].at("target") == "T0");
    BOOST_TEST(rows[0].at("options").at("verify") == "digest");
    BOOST_TEST(rows[0].at("bytes").at("needed") == 64 * 64 * 4);
    BOOST_TEST(rows[0].at("bytes").at("local") == (disjoint ? 0 : 64 * 64 * 2));
    BOOST_TEST(rows[0].contains("memory") == has_processes());
    if (has_processes())
      BOOST_TEST(rows[0].at("memory").at("allowed") == (disjoint ? 64 * 64 * 2 : 64 * 64 * 4) + (320u << 20));
  }
}

BOOST_AUTO_TEST_CASE(replicas_of_a_case_come_from_the_lowest_rank_if_asked) {
  const char* const replicas = R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [64, 64]}],
    "source": {"ranks": 2, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"replicated": true}}}})j";
  const CommandResult result = perf(
      {"-", "--repeats", "1", "--transport", transport(), "--against", "contiguous", "--replicas", "first", "--json"},
      replicas);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const Json row = rows_of(result.out).at(0);
  BOOST_TEST(row.at("options").at("replicas") == "first");
  BOOST_TEST(row.at("bytes").at("local") == 64 * 64 * 4);
  BOOST_TEST(row.at("bytes").at("moved") == 64 * 64 * 4);
}

BOOST_AUTO_TEST_CASE(a_method_that_is_not_possible_fails_and_says_why, *boost::unit_test::precondition(over_tcp)) {
  // TCP cannot map memory.
  const CommandResult result =
      perf({"-", "--repeats", "1", "--tcp", "--method", "mapped", "--against", "none"}, two_ranks);
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(result.out == "");
  BOOST_TEST(result.err.find("not measured: mapped: ") != std::string::npos, result.err);
}

BOOST_AUTO_TEST_CASE(goes_over_the_transport_of_its_own_unless_told_otherwise,
                     *boost::unit_test::label("tcp") * boost::unit_test::precondition(over_tcp_with_ucx)) {
  for (const std::string name : {"", "tcp", "ucx"}) {
    Words words{"-", "--repeats", "1", "--tcp", "--against", "none"};
    if (!name.empty()) words.insert(words.end(), {"--transport", name});
    // Options take precedence over SHARDWIRE_TRANSPORT.
    const CommandResult result = perf(words, two_ranks, {{"SHARDWIRE_TRANSPORT", "shm"}});
    BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const Json row = rows_of(result.out).at(0);
    check_row(row, 2);
    const std::string expected = name.empty() ? "tcp" : name;
    BOOST_TEST(row.at("options").at("transport") == expected);
    BOOST_TEST(row.at("versions").at("fabric").get<std::string>().starts_with(expected + " "));
    BOOST_TEST(row.at("bytes").at("moved") == 64 * 64 * 2);
    BOOST_TEST(result.err.find(" " + expected + "/") != std::string::npos, result.err);  // the path is printed
  }
}

BOOST_AUTO_TEST_CASE(a_sweep_says_by_which_port_a_method_was_the_fastest, *boost::unit_test::precondition(over_tcp)) {
  const CommandResult result = perf({"--runs", "4K", "--bytes", "64K", "--repeats", "1", "--transport", "tcp",
                                     "--method", "zcopy", "--against", "none"});
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const Json row = rows_of(result.out).at(0);
  BOOST_TEST(row.at("paths") == Json::parse(R"j([{"path": "tcp/zcopy", "port": "lo", "bytes": 131072}])j"));
  BOOST_TEST(row.at("nics").at("count") == 1);
  BOOST_TEST(!row.at("nics").contains("line_bytes_per_second"));  // lo has none
  BOOST_TEST(result.err.find("zcopy at 4 KiB: tcp/zcopy (lo); ") != std::string::npos, result.err);
}

BOOST_AUTO_TEST_CASE(each_pair_is_measured_alone_and_halves_at_once) {
  const CommandResult result = perf({"--pairs", "--ranks", "4", "--runs", "4K", "--bytes", "64K", "--repeats", "1",
                                     "--transport", transport(), "--against", "none"});
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  std::multiset<std::string> seen;
  for (const Json& row : rows_of(result.out)) {
    check_row(row, 4);
    BOOST_TEST(row.at("hosts") == 1);
    std::string who;
    for (const Json& pair : row.at("pairs")) {
      who +=
          pair.at("source").get<std::string>().substr(0, 1) + pair.at("target").get<std::string>().substr(0, 1) + " ";
    }
    seen.insert(who);
    BOOST_TEST(row.at("bytes").at("moved") == row.at("pairs").size() << 16);
  }
  BOOST_TEST((seen == std::multiset<std::string>{"01 ", "02 ", "03 ", "10 ", "12 ", "13 ", "20 ", "21 ", "23 ", "30 ",
                                                 "31 ", "32 ", "02 13 ", "20 31 "}));
  BOOST_TEST(count(result.err, "<- ") >= 12);
  BOOST_TEST(count(result.err, "2 pairs at once") == 2);
}

// UCX emulates reads over TCP. The loop's elements are compared too, which shows that it reads the right ranges.
BOOST_AUTO_TEST_CASE(takes_turns_with_a_plain_loop_of_reads,
                     *boost::unit_test::label("tcp") * boost::unit_test::precondition(over_tcp_with_ucx)) {
  for (const bool disjoint : {false, true}) {
    Words words{"-", "--repeats", "1", "--tcp", "--against", "ucp_get"};
    if (disjoint) words.emplace_back("--disjoint");
    const CommandResult result = perf(words, two_ranks);
    BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const Json row = rows_of(result.out).at(0);
    check_row(row, disjoint ? 4 : 2);
    BOOST_TEST(row.at("against").at("ucp_get").at("fastest").get<std::string>().starts_with("ucp_get 64 reads"));
    BOOST_TEST(row.at("versions").at("ucp_get").get<std::string>().starts_with("ucx 1."));
    // Half of each of 64 rows; a process that holds half of the rows needs no read for its half.
    BOOST_TEST(row.at("reads").at("count") == (disjoint ? 128 : 64));
    BOOST_TEST(row.at("reads").contains("ucp_get_per_second"));
    BOOST_TEST(!row.at("reads").contains("restore_per_second"));  // it sent messages
  }
}

// The same loop over libfabric, compared with restores over libfabric and over another transport.
BOOST_AUTO_TEST_CASE(takes_turns_with_a_plain_loop_over_libfabric,
                     *boost::unit_test::label("tcp") * boost::unit_test::precondition(over_tcp_with_libfabric)) {
  for (const std::string transport : {"libfabric,tcp", "tcp"}) {
    const bool reads = transport != "tcp";
    for (const bool disjoint : {false, true}) {
      Words words{"-", "--repeats", "1", "--tcp", "--against", "fi_read", "--transport", transport};
      if (reads) words.insert(words.end(), {"--method", "read"});
      if (disjoint) words.emplace_back("--disjoint");
      // --tcp means TCP, even if the environment selects another libfabric provider.
      const CommandResult result = perf(words, two_ranks, {{"FI_PROVIDER", "verbs"}});
      BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
      const Json row = rows_of(result.out).at(0);
      check_row(row, disjoint ? 4 : 2);
      BOOST_TEST(row.at("against").at("fi_read").at("fastest").get<std::string>().starts_with("fi_read 64 reads"));
      BOOST_TEST(row.at("bounds").size() == 2);
      BOOST_TEST(row.at("versions").at("fi_read").get<std::string>().starts_with("libfabric 1."));
      BOOST_TEST(row.at("reads").at("count") == (disjoint ? 128 : 64));
      BOOST_TEST(row.at("reads").contains("fi_read_per_second"));
      BOOST_TEST(row.at("reads").contains("restore_over_fi_read") == reads);
      BOOST_TEST(row.at("methods").at("read") == (reads ? (disjoint ? 64 * 64 * 4 : 64 * 64 * 2) : 0));
      // The ratio excludes the loop's memory; a sanitizer adds its own.
      if (!with_address_sanitizer) BOOST_TEST(row.at("memory").at("ratio") < 1.0);
    }
  }
}

BOOST_AUTO_TEST_CASE(takes_turns_with_tagged_messages_over_tcp,
                     *boost::unit_test::label("tcp") * boost::unit_test::precondition(over_tcp_with_ucx)) {
  const CommandResult result =
      perf({"-", "--repeats", "1", "--tcp", "--disjoint", "--method", "packed,zcopy"}, two_ranks);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const auto rows = rows_of(result.out);
  BOOST_REQUIRE(rows.size() == 2);
  for (const Json& row : rows) {
    check_row(row, 4);
    BOOST_TEST(row.at("options").at("tcp") == true);
    BOOST_TEST(row.at("bounds").size() == 5);
    BOOST_TEST(row.at("against").at("ucx").at("fastest").get<std::string>().starts_with("tag "));
    BOOST_TEST(row.at("versions").at("ucx").get<std::string>().starts_with("ucx 1."));
  }
}

BOOST_AUTO_TEST_CASE(takes_turns_with_mpi_where_there_is_one,
                     *boost::unit_test::label("processes") * boost::unit_test::precondition(with_mpi)) {
  const bool tcp = transport() == "tcp";
  Words words{"-", "--repeats", "2", "--against", "memcpy,mpi"};
  if (tcp) words.emplace_back("--tcp");
  const CommandResult result = perf(words, two_ranks);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const Json row = rows_of(result.out).at(0);
  check_row(row, 2);
  BOOST_TEST(row.at("bounds").at("MPI_Alltoallw") > 0.0);
  BOOST_TEST(row.at("against").at("mpi").at("transport").get<std::string>().starts_with(tcp ? "tcp" : "vader"));
  BOOST_TEST(row.at("versions").at("mpi").get<std::string>().starts_with("Open MPI"));
  BOOST_TEST(row.at("bound") == row.at("against").at("memcpy").at("fastest"));
}

BOOST_AUTO_TEST_CASE(ordinary_memory_is_not_mapped,
                     *boost::unit_test::label("processes") * boost::unit_test::precondition(with_processes)) {
  const CommandResult result = perf({"-", "--repeats", "1", "--ordinary", "--transport", transport()}, two_ranks);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const Json row = rows_of(result.out).at(0);
  check_row(row, 2);
  BOOST_TEST(row.at("options").at("ordinary") == true);
  BOOST_TEST(row.at("methods").at("mapped") == 0);
  BOOST_TEST(row.at("bytes").at("local") == 64 * 64 * 2);
}

// 2 ranks that each want half of the columns: 8 KiB cross, in runs of 128 bytes or in one run per pair.
BOOST_AUTO_TEST_CASE(a_restore_is_measured_beside_others) {
  for (const bool disjoint : {false, true}) {
    Words words{"-",        "--repeats", "2",         "--transport",          transport(),
                "--verify", "digest",    "--against", "unverified,contiguous"};
    if (disjoint) words.emplace_back("--disjoint");
    const CommandResult result = perf(words, two_ranks);
    BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
    const Json row = rows_of(result.out).at(0);
    check_row(row, disjoint ? 4 : 2);
    BOOST_TEST(row.at("bound") == "unverified");
    for (const char* one : {"unverified", "contiguous"}) {
      BOOST_TEST(row.at("against").at(one).at("fastest") == one);
      BOOST_TEST(row.at("bounds").at(one) > 0.0);
      BOOST_TEST(row.at("cpu_seconds").at(one) > 0.0);
    }
  }
}

BOOST_AUTO_TEST_CASE(first_restores_are_told_apart,
                     *boost::unit_test::label("processes") * boost::unit_test::precondition(with_processes)) {
  const CommandResult result = perf({"-", "--repeats", "2", "--fresh", "3", "--transport", transport()}, two_ranks);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const auto rows = rows_of(result.out);
  BOOST_REQUIRE(rows.size() == 1);
  check_row(rows[0], 2);
  BOOST_TEST(!rows[0].contains("bound"));
  BOOST_TEST(rows[0].at("starts") == 3);
  const Json& first = rows[0].at("first");
  BOOST_TEST(first.at("seconds_min") <= first.at("seconds"));
  BOOST_TEST(first.at("seconds") <= first.at("seconds_max"));
  BOOST_TEST(first.at("over_later") > 0.0);
  // Joining is reported separately, and no later restore joins.
  BOOST_TEST(first.at("stages").at("join") > 0.0);
  BOOST_TEST(rows[0].at("stages").at("join") == 0.0);
}

BOOST_AUTO_TEST_CASE(a_calibration_is_read_by_run_and_perf,
                     *boost::unit_test::label("shm") * boost::unit_test::precondition(over_shared_memory)) {
  const TemporaryFile file;
  const CommandResult result = perf({"--calibrate", file.path, "--bytes", "64K", "--repeats", "1"});
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  const CostModel costs = load_costs(file.path);
  BOOST_TEST((costs != CostModel()));
  std::set<std::string> measured;
  const Json written = Json::parse(file.text());
  for (const Json& cost : written.at("costs")) {
    BOOST_TEST(cost.at("bytes_per_second") > 0.0);
    BOOST_TEST(cost.at("memory") == "host");
    const std::string name = cost.at("transport").get<std::string>() + " " + cost.at("method").get<std::string>();
    BOOST_TEST(measured.insert(name).second, name);
  }
  BOOST_TEST(written.at("format") == "shardwire costs 2");
  for (const char* one : {"local local", "shm mapped", "tcp zcopy", "tcp packed"}) {
    BOOST_TEST(measured.count(one) == 1, one);
  }
  // If the kernel forbids reads between processes, the output reports it.
  BOOST_TEST((measured.count("shm read") == 1) == (result.err.find("not measured: read: ") == std::string::npos),
             result.err);
  for (const std::string& one : measured) BOOST_TEST(!one.starts_with("ucx"), one);
  BOOST_TEST(written.at("processor").get<std::string>() == costs.tuning().kernels.processor);
  BOOST_TEST(costs.tuning().kernels.entries.size() == 6U);
  BOOST_TEST(written.at("tcp").at("request_bytes") == costs.tuning().tcp.request_bytes);
  BOOST_TEST(written.at("tcp").at("streams") == costs.tuning().tcp.streams);
  BOOST_TEST(result.err.find("tcp: requests of ") != std::string::npos, result.err);
  BOOST_TEST(run_command({"run", "-", "--calibration", file.path}, two_ranks).exit_code == 0);
  BOOST_TEST(run_command({"run", "-"}, two_ranks, {{"SHARDWIRE_CALIBRATION", file.path}}).exit_code == 0);
  const CommandResult again = perf({"-", "--repeats", "1", "--calibration", file.path}, two_ranks);
  BOOST_TEST(again.exit_code == 0);
  BOOST_TEST(rows_of(again.out).at(0).at("options").at("calibration") == file.path);
  std::ofstream(file.path) << "{}";
  const CommandResult bad = run_command({"run", "-", "--calibration", file.path}, two_ranks);
  BOOST_TEST(bad.exit_code == 2);
  BOOST_TEST(bad.err.find(file.path) != std::string::npos, bad.err);
}

// It reads registered memory, so arenas must be measured.
BOOST_AUTO_TEST_CASE(a_fabric_that_only_reads_is_calibrated,
                     *boost::unit_test::label("tcp") * boost::unit_test::precondition(over_tcp_with_libfabric)) {
  const TemporaryFile file;
  const CommandResult result =
      perf({"--calibrate", file.path, "--transport", "libfabric", "--bytes", "64K", "--repeats", "1"}, "",
           {{"FI_PROVIDER", "tcp"}, {"FI_TCP_IFACE", "lo"}});
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  std::set<std::string> measured;
  const Json written = Json::parse(file.text());
  for (const Json& cost : written.at("costs")) {
    measured.insert(cost.at("transport").get<std::string>() + " " + cost.at("method").get<std::string>());
  }
  BOOST_TEST(measured.count("local local") == 1, result.err);
  BOOST_TEST(measured.count("libfabric read") == 1, result.err);
}

BOOST_AUTO_TEST_CASE(ranks_that_a_launcher_started_measure_together,
                     *boost::unit_test::label("processes") * boost::unit_test::precondition(with_processes)) {
  const std::string port = std::to_string(free_port());
  const std::string method = transport() == "tcp" ? "packed" : "mapped";
  std::vector<std::unique_ptr<RunningCommand>> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<RunningCommand>(
        Words{command_path(), "perf", "--runs", "1K,4K", "--bytes", "16K", "--repeats", "2", "--transport", transport(),
              "--method", method, "--against", std::getenv("TEST_UCX") != nullptr ? "memcpy,ucx" : "memcpy"},
        "",
        std::vector<std::pair<std::string, std::string>>{
            {"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"SHARDWIRE_PORT", port}}));
  }
  const CommandResult first = ranks[0]->wait();
  const CommandResult second = ranks[1]->wait();
  BOOST_REQUIRE_MESSAGE(first.exit_code == 0, first.err);
  BOOST_REQUIRE_MESSAGE(second.exit_code == 0, second.err);
  BOOST_TEST(second.out == "");  // only rank 0 prints
  const auto rows = rows_of(first.out);
  BOOST_REQUIRE(rows.size() == 2);
  for (const Json& row : rows) {
    check_row(row, 2);
    BOOST_TEST(row.at("method") == method);
    BOOST_TEST(row.at("against").size() == (std::getenv("TEST_UCX") != nullptr ? 2 : 1));
  }
}

BOOST_AUTO_TEST_CASE(layers_replace_those_of_the_case) {
  const char* const model =
      R"j({"name": "m", "model": "llama3-8b", "layers": 2, "embeddings": false, "dtype": "u8", "states": ["master"],
    "source": {"ranks": 1, "rules": {"*": {"chunk": 0, "over": 1}}},
    "target": {"ranks": 1, "rules": {"row": {"boxes": {}}, "col": {"boxes": {}}, "*": {"chunk": 0, "over": 1}}}})j";
  const CommandResult result = perf({"-", "--layers", "1", "--repeats", "1", "--transport", "loopback"}, model);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  BOOST_TEST(rows_of(result.out).at(0).at("bytes").at("needed") == 2 * 4096);
  BOOST_TEST(rows_of(result.out).at(0).at("options").at("layers") == 1);
}

BOOST_AUTO_TEST_SUITE_END()
