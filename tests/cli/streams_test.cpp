// SPDX-License-Identifier: Apache-2.0
// Standard streams that are closed, full or without a reader, and folders given as files.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

#include "support/command.hpp"
#include "support/file.hpp"

BOOST_AUTO_TEST_SUITE(streams)

namespace {

using namespace shardwire::test;

const char* const small = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [4, 6]}],
  "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 3, "rules": {"*": {"mesh": [3], "placements": ["S(1)"]}}}
})j";
// 40,000 pieces: more text than a pipe or any buffer can hold.
const char* const large = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [200, 200]}],
  "source": {"ranks": 200, "rules": {"*": {"chunk": 0, "over": 200}}},
  "target": {"ranks": 200, "rules": {"*": {"chunk": 1, "over": 200}}}
})j";

// The shell redirects, and then executes the command or waits for it.
CommandResult run_redirected(const std::string& redirected, const char* text,
                             std::vector<std::pair<std::string, std::string>> environment = {}) {
  const File file("case.json", text);
  return RunningCommand({"/bin/sh", "-c", redirected, command_path(), file.path()}, "", std::move(environment)).wait();
}

struct Redirected {
  const char* line;  ///< shell command: $0 is the command, $1 the case
  int exit_code;
  const char* says;  ///< expected on standard error
};
std::ostream& operator<<(std::ostream& out, const Redirected& redirected) {
  return out << redirected.line;
}

const Redirected lines[] = {
    {"exec \"$0\" plan $1 >&-", 1, "shardwire: cannot write to standard output: Bad file descriptor\n"},
    {"exec \"$0\" plan --json $1 >&-", 1, "cannot write to standard output: Bad file descriptor\n"},
    {"exec \"$0\" plan $1 >/dev/full", 1, "cannot write to standard output: No space left on device\n"},
    {"exec \"$0\" plan --json $1 >/dev/full", 1, "cannot write to standard output: No space left on device\n"},
    {"exec \"$0\" --help >/dev/full", 1, "cannot write to standard output: No space left on device\n"},
    {"exec \"$0\" --version >&-", 1, "cannot write to standard output: Bad file descriptor\n"},
    {"exec \"$0\" plan - <&-", 2, "shardwire: standard input: Bad file descriptor\n"},
    {"exec \"$0\" plan $1 <&-", 0, ""},
    {"exec \"$0\" plan $1 2>&-", 0, ""},
    {"exec \"$0\" plan $1 2>/dev/full", 0, ""},
    {"exec \"$0\" plan nosuch.json 2>&-", 2, ""},
    {"exec \"$0\" plan nosuch.json 2>/dev/full", 2, ""},
    {"exec \"$0\" plan --bogus $1 2>&-", 2, ""},
    {"exec \"$0\" 2>&-", 2, ""},
    {"exec \"$0\" plan $1 <&- >&- 2>&-", 1, ""},
    {"exec \"$0\" run --transport loopback $1 >&-", 1, "cannot write to standard output: Bad file descriptor\n"},
    {"exec \"$0\" run --transport loopback $1 >/dev/full", 1,
     "cannot write to standard output: No space left on device\n"},
    {"exec \"$0\" run --transport loopback $1 2>&-", 0, ""},
    {"exec \"$0\" run --transport loopback $1 2>/dev/full", 0, ""},
    {"exec \"$0\" run --transport loopback $1 <&- 2>&-", 0, ""},
    {"exec \"$0\" plan .", 2, "shardwire: .: Is a directory\n"},
    {"exec \"$0\" run .", 2, "shardwire: .: Is a directory\n"},
    {"exec \"$0\" plan --fabric . $1", 2, "shardwire: .: Is a directory\n"},
};

}  // namespace

BOOST_DATA_TEST_CASE(what_does_not_work_is_an_error_and_no_crash, boost::unit_test::data::make(lines), sample) {
  const CommandResult result = run_redirected(sample.line, small);
  BOOST_TEST(result.exit_code == sample.exit_code, result.err);
  BOOST_TEST(result.err.find(sample.says) != std::string::npos, result.err);
}

BOOST_AUTO_TEST_CASE(a_reader_that_goes_away_ends_the_command_with_an_error) {
  const CommandResult result = run_redirected("{ \"$0\" plan --json $1; echo \"exit $?\" >&2; } | true", large);
  BOOST_TEST(result.err.find("shardwire: cannot write to standard output: Broken pipe\nexit 1\n") != std::string::npos,
             result.err);
}

BOOST_DATA_TEST_CASE(a_report_holds_nothing_but_itself_whatever_streams_are_closed,
                     boost::unit_test::data::make({">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"}), closed) {
  const File report("report.json");
  const std::string line = "exec \"$0\" run --transport loopback --report " + report.path() + " $1 " + closed;
  const CommandResult result = run_redirected(line, small);
  BOOST_TEST(result.exit_code == (std::string(closed) == "2>&-" ? 0 : 1), result.err);
  const nlohmann::json written = report.json();
  BOOST_REQUIRE(written.is_object());
  BOOST_TEST(written["verified"] == true);
}

BOOST_AUTO_TEST_CASE(a_key_file_that_is_none_is_bad_usage) {
  const File empty("key", "");
  for (const auto& [path, why] : {std::pair<std::string, std::string>{".", ".: Is a directory"},
                                  {"/nonexistent/key", "/nonexistent/key: No such file or directory"},
                                  {empty.path(), empty.path() + ": the file is empty"}}) {
    for (const char* line : {"exec \"$0\" run --transport loopback $1", "RANK=0 WORLD_SIZE=3 exec \"$0\" run $1",
                             "exec \"$0\" perf --ranks 2 --runs 4K --bytes 64K --repeats 1 --transport loopback"}) {
      const CommandResult result = run_redirected(line, small, {{"SHARDWIRE_JOB_KEY_FILE", path}});
      BOOST_TEST(result.exit_code == 2, line);
      BOOST_TEST(result.err == "shardwire: SHARDWIRE_JOB_KEY_FILE: " + why + "\n");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
