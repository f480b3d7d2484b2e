// SPDX-License-Identifier: Apache-2.0
// shardwire trace merge
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/command.hpp"
#include "support/fake_root.hpp"

BOOST_AUTO_TEST_SUITE(trace_command)

namespace {

using namespace shardwire::test;
using nlohmann::json;

/// A process as its trace describes it.
struct Member {
  int number = 0;
  std::string host;
  std::string session;
  std::int64_t session_began_ns = 0;
  std::int64_t began_ns = 0;
  std::int64_t began_unix_ns = 0;
};

/// A folder with traces of members, each with one span, which begins 10 us after its trace.
struct Folder {
  FakeRoot root;

  [[nodiscard]] std::string path(const std::string& name) const { return (root.path / name).string(); }
  void write(const std::string& name, const Member& of,
             const std::string& ending = R"(],"shardwire.spans.dropped":0})") const {
    const json data = {{"shardwire.member", of.number},
                       {"shardwire.session", of.session},
                       {"shardwire.session.began_ns", of.session_began_ns},
                       {"shardwire.began_ns", of.began_ns},
                       {"shardwire.began_unix_ns", of.began_unix_ns},
                       {"host.boot.id", of.host}};
    const std::string number = std::to_string(of.number);
    root.write("/" + name, R"({"otherData":)" + data.dump() + R"(,"traceEvents":[)" +
                               "\n"
                               R"({"name":"process_name","ph":"M","pid":)" +
                               number + R"(,"tid":0,"args":{"name":"member"}},)" + "\n" +
                               R"({"name":"shardwire.join","ph":"X","pid":)" + number +
                               R"(,"tid":1,"ts":10,"dur":5,"args":{"seconds":0.000005}})" + "\n" + ending + "\n");
  }
  [[nodiscard]] CommandResult merge(std::vector<std::string> words) const {
    words.insert(words.begin(), {"trace", "merge"});
    return run_command(words);
  }
};

/// Begins of spans, by process.
std::map<int, std::int64_t> begins(const std::string& trace) {
  std::map<int, std::int64_t> found;
  for (const json all = json::parse(trace); const json& event : all.at("traceEvents")) {
    if (event.at("ph") == "X") found[event.at("pid")] = event.at("ts");
  }
  return found;
}

using Begins = std::map<int, std::int64_t>;

/// The trace of a job of two ranks, each of which restores twice.
std::string trace_of_a_job(const Folder& folder) {
  const std::string job = R"({"tensors": [{"fqn": "w", "shape": [64, 64]}],
    "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
    "target": {"ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}}}})";
  const CommandResult run = run_command({"run", "-", "--transport", "loopback", "--repeat", "2"}, job,
                                        {{"SHARDWIRE_TRACE", folder.path("t.json")}});
  BOOST_REQUIRE_MESSAGE(run.exit_code == 0, run.err);
  const CommandResult merged = folder.merge({folder.path("t-0.json"), folder.path("t-1.json")});
  BOOST_REQUIRE_MESSAGE(merged.exit_code == 0, merged.err);
  return merged.out;
}

bool is_number(const json& value, std::int64_t most) {
  return value.is_number_integer() && value >= 0 && value <= most;
}

/// Perfetto accepts whatever it can show of a trace. These are the rules of the Trace Event Format for what this command
/// writes.
class FormatCheck {
 public:
  void add(const json& event) {
    BOOST_TEST_CONTEXT(event.dump()) {
      constexpr std::int64_t most_id = std::numeric_limits<std::uint32_t>::max();
      BOOST_REQUIRE((is_number(event.at("pid"), most_id) && is_number(event.at("tid"), most_id)));
      BOOST_REQUIRE((event.at("name").is_string() && event.at("name") != ""));
      BOOST_REQUIRE(event.at("args").is_object());
      if (event.at("ph") == "M") {
        name(event);
      } else {
        BOOST_REQUIRE(event.at("ph") == "X");
        span(event);
      }
    }
  }

 private:
  struct Row {
    std::int64_t latest = 0;           // begin
    std::vector<std::int64_t> ends{};  // of the spans around the latest
  };

  void name(const json& event) {
    BOOST_TEST(event.size() == 5U);  // it has no time
    BOOST_TEST((event.at("args").size() == 1U && event.at("args").at("name").is_string()));
    const int process = event.at("pid");
    if (event.at("name") == "process_name") {
      BOOST_TEST(processes_.insert(process).second);
    } else {
      BOOST_TEST(event.at("name") == "thread_name");
      const int row = event.at("tid");
      BOOST_TEST(rows_.try_emplace(std::pair(process, row)).second);
    }
  }
  void span(const json& event) {
    constexpr std::int64_t most = std::int64_t{1} << 53;  // what a double has exactly
    BOOST_REQUIRE((is_number(event.at("ts"), most) && is_number(event.at("dur"), most)));
    for (const json& value : event.at("args")) BOOST_TEST((value.is_string() || value.is_number()));
    const std::pair place(event.at("pid").get<int>(), event.at("tid").get<int>());
    BOOST_TEST(processes_.contains(place.first));
    const auto row = rows_.find(place);
    BOOST_REQUIRE((row != rows_.end()));  // it has its name before
    // A span comes after the one around it, and ends with it at the latest.
    const std::int64_t began = event.at("ts");
    const std::int64_t ended = began + event.at("dur").get<std::int64_t>();
    auto& [latest, ends] = row->second;
    BOOST_TEST(began >= latest);
    latest = began;
    while (!ends.empty() && ends.back() <= began) ends.pop_back();
    BOOST_TEST((ends.empty() || ended <= ends.back()));
    ends.push_back(ended);
  }

  std::set<int> processes_;
  std::map<std::pair<int, int>, Row> rows_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(processes_of_one_host_share_its_clock) {
  const Folder folder;
  folder.write("t-0.json", {0, "a", "s", 900'000, 1'000'000, 0});
  folder.write("t-1.json", {1, "a", "s", 950'000, 3'000'000, 77});
  const CommandResult result = folder.merge({folder.path("t-0.json"), folder.path("t-1.json")});
  BOOST_TEST(result.exit_code == 0, result.err);
  BOOST_TEST((begins(result.out) == Begins{{0, 10}, {1, 2010}}), result.out);
  const json first = json::parse(result.out).at("traceEvents").at(0);
  BOOST_TEST(first == json::parse(R"({"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"member"}})"));
}

// Members 1 and 2 are on a host whose clock began 5 s later. Member 2 has heard of the session sooner than member 1.
BOOST_AUTO_TEST_CASE(hosts_are_aligned_by_the_beginning_of_the_session) {
  const Folder folder;
  folder.write("t-0.json", {0, "a", "s", 9'000'000'000, 9'000'000'000, 0});
  folder.write("t-1.json", {1, "b", "s", 4'000'300'000, 4'001'000'000, 123'456});
  folder.write("t-2.json", {2, "b", "s", 4'000'000'000, 4'002'000'000, 0});
  const CommandResult result =
      folder.merge({folder.path("t-0.json"), folder.path("t-1.json"), folder.path("t-2.json")});
  BOOST_TEST((begins(result.out) == Begins{{0, 10}, {1, 1010}, {2, 2010}}), result.out);
}

BOOST_AUTO_TEST_CASE(sessions_of_two_hosts_are_aligned_by_the_time_of_day) {
  const Folder folder;
  folder.write("t-0.json", {0, "a", "s", 0, 9'000'000'000, 50'000'000'000});
  folder.write("u-0.json", {0, "b", "r", 0, 4'000'000'000, 50'003'000'000});
  const CommandResult result = folder.merge({folder.path("t-0.json"), folder.path("u-0.json")});
  // Two processes that had the same number stay apart.
  BOOST_TEST((begins(result.out) == Begins{{0, 10}, {1'000'000, 3010}}), result.out);
}

BOOST_AUTO_TEST_CASE(the_earliest_trace_begins_at_0_whatever_the_order) {
  const Folder folder;
  folder.write("t-0.json", {0, "a", "s", 0, 3'000'000, 0});
  folder.write("t-1.json", {1, "a", "s", 0, 1'000'000, 0});
  const CommandResult result = folder.merge({folder.path("t-0.json"), folder.path("t-1.json")});
  BOOST_TEST((begins(result.out) == Begins{{0, 2010}, {1, 10}}), result.out);
}

BOOST_AUTO_TEST_CASE(a_host_without_a_boot_id_is_a_host_of_its_own) {
  const Folder folder;
  folder.write("t-0.json", {0, "", "s", 1'000'000, 1'000'000, 0});
  folder.write("t-1.json", {1, "", "s", 8'000'000, 8'000'000, 0});
  const CommandResult result = folder.merge({folder.path("t-0.json"), folder.path("t-1.json")});
  BOOST_TEST((begins(result.out) == Begins{{0, 10}, {1, 10}}), result.out);
}

BOOST_AUTO_TEST_CASE(a_file_receives_the_trace_and_a_line_tells_its_content) {
  const Folder folder;
  folder.write("t-0.json", {0, "a", "s", 0, 0, 0});
  folder.write("t-1.json", {1, "b", "s", 0, 0, 0});
  const std::string all = folder.path("all.json");
  const CommandResult result = folder.merge({folder.path("t-0.json"), folder.path("t-1.json"), "--output", all});
  BOOST_TEST(result.exit_code == 0, result.err);
  BOOST_TEST(result.out == all + " has 2 spans of 2 members on 2 hosts\n");
  std::ifstream file(all);
  BOOST_TEST(begins({std::istreambuf_iterator<char>(file), {}}).size() == 2U);
}

BOOST_AUTO_TEST_CASE(spans_that_a_member_left_out_are_told) {
  const Folder folder;
  folder.write("t-0.json", {0, "a", "s", 0, 0, 0}, R"(],"shardwire.spans.dropped":12})");
  const CommandResult result = folder.merge({folder.path("t-0.json")});
  BOOST_TEST(result.exit_code == 0);
  BOOST_TEST(result.err.find("t-0.json: 12 spans left out") != std::string::npos, result.err);
}

BOOST_AUTO_TEST_CASE(files_that_are_no_traces_are_refused) {
  const Folder folder;
  folder.write("t-0.json", {0, "a", "s", 0, 0, 0});
  folder.root.write("/other.json", R"({"traceEvents":[)");
  folder.root.write("/empty.json", "");
  folder.write("torn.json", {0, "a", "s", 0, 0, 0}, R"({"name":"shardw)");
  const auto refuses = [&](const std::string& name, const std::string& why) {
    const CommandResult result = folder.merge({folder.path("t-0.json"), folder.path(name)});
    BOOST_TEST(result.exit_code == 2);
    BOOST_TEST(result.err.find(name + ": " + why) != std::string::npos, result.err);
  };
  refuses("none.json", "cannot be read, or is empty");
  refuses("empty.json", "cannot be read, or is empty");
  refuses("other.json", "this is no file of SHARDWIRE_TRACE: the field 'otherData' is missing");
  refuses("torn.json", "line 4 is no event");
  const CommandResult own = folder.merge({folder.path("t-0.json"), "--output", folder.path("t-0.json")});
  BOOST_TEST(own.exit_code == 2);
  BOOST_TEST(own.err.find("t-0.json is one of the files to merge") != std::string::npos, own.err);
  BOOST_TEST(begins(folder.merge({folder.path("t-0.json")}).out).size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_command_of_its_own_is_expected) {
  const CommandResult none = run_command({"trace"});
  BOOST_TEST(none.exit_code == 2);
  BOOST_TEST(none.err.find("trace: merge is expected") != std::string::npos, none.err);
  const CommandResult misspelt = run_command({"trace", "merrge", "x"});
  BOOST_TEST(misspelt.exit_code == 2);
  BOOST_TEST(misspelt.err.find("there is no command 'merrge' (did you mean 'merge'?)") != std::string::npos,
             misspelt.err);
  BOOST_TEST(run_command({"trace", "merge"}).exit_code == 2);
}

// The command reads the files that a job writes.
BOOST_AUTO_TEST_CASE(traces_of_a_job_become_one) {
  const Folder folder;
  const std::string merged = trace_of_a_job(folder);
  std::map<int, std::int64_t> needed;
  for (const json all = json::parse(merged); const json& event : all.at("traceEvents")) {
    if (event.at("name") == "shardwire.restore") {
      needed[event.at("pid")] += event.at("args").at("shardwire.bytes.needed").get<std::int64_t>();
    }
  }
  const std::int64_t of_rank = 2 * 3 * 64 * 64 * 4 / 2;  // a case that names no states has three
  BOOST_TEST((needed == std::map<int, std::int64_t>{{0, of_rank}, {1, of_rank}}), merged);
}

BOOST_AUTO_TEST_CASE(a_trace_keeps_the_rules_of_its_format) {
  const Folder folder;
  const json all = json::parse(trace_of_a_job(folder));
  BOOST_TEST(all.size() == 1U);
  FormatCheck check;
  for (const json& event : all.at("traceEvents")) check.add(event);
}

BOOST_AUTO_TEST_SUITE_END()
