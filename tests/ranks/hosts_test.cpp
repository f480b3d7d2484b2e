// SPDX-License-Identifier: Apache-2.0
// Two hosts on one machine: network namespaces joined by a rate-limited wire, with separate processes, mounts, IPC and
// /dev/shm.
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <map>
#include <set>
#include <sstream>

#include "support/command.hpp"
#include "support/file.hpp"
#include "support/host.hpp"

namespace hosts {

namespace {

using namespace shardwire::test;
using namespace std::chrono_literals;
using Json = nlohmann::json;

CommandResult tool(const std::string& line) {
  return RunningCommand({"/bin/sh", "-c", line}).wait(20s);
}

// Two network namespaces and a wire between them. Each end sends at most 1 Gbit/s, after a delay. The destructor
// removes them.
class Wire {
 public:
  explicit Wire(std::chrono::milliseconds delay = {}) : name_("shardwire" + std::to_string(::getpid())) {
    for (const char end : {'a', 'b'}) {
      must("ip netns add " + network(end));
      must("ip -n " + network(end) + " link set lo up");
    }
    must("ip link add " + device('a') + " netns " + network('a') + " type veth peer name " + device('b') + " netns " +
         network('b'));
    for (const char end : {'a', 'b'}) {
      must("ip -n " + network(end) + " address add " + address(end) + "/24 dev " + device(end));
      must("ip -n " + network(end) + " link set " + device(end) + " up");
      const std::string add = "tc -n " + network(end) + " qdisc add dev " + device(end);
      must(add + " root handle 1: tbf rate 1gbit burst 256kb latency 50ms");
      if (delay.count() > 0) must(add + " parent 1:1 netem limit 10000 delay " + std::to_string(delay.count()) + "ms");
    }
    // A device exists before it counts as running.
    for (const char end : {'a', 'b'}) {
      must("for i in $(seq 200); do ip -n " + network(end) + " link show dev " + device(end) +
           " | grep -q 'state UP' && exit 0; sleep 0.05; done; exit 1");
    }
  }
  ~Wire() { remove(); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  [[nodiscard]] std::string network(char end) const { return name_ + end; }
  [[nodiscard]] static std::string device(char end) { return std::string("wire") + end; }  // local to a namespace
  [[nodiscard]] static std::string address(char end) { return std::string("10.217.93.") + (end == 'a' ? "1" : "2"); }
  /// Bytes that this end has sent.
  [[nodiscard]] double sent_bytes(char end) const {
    const CommandResult shown = tool("ip -n " + network(end) + " -s -j link show dev " + device(end));
    return Json::parse(shown.out).at(0).at("stats64").at("tx").at("bytes").get<double>();
  }

 private:
  void must(const std::string& line) {
    const CommandResult result = tool(line);
    if (result.exit_code == 0) return;
    remove();
    throw std::runtime_error(line + ": " + result.err);
  }
  // Deleting the namespaces also deletes the wire.
  void remove() const noexcept {
    for (const char end : {'a', 'b'}) {
      try {
        tool("ip netns delete " + network(end));
      } catch (const std::exception&) {  // go on with the next one
      }
    }
  }

  std::string name_;
};

boost::test_tools::assertion_result wires_can_be_laid(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(false);
  const auto [can, why] = can_make_hosts();
  if (!can) {
    result.message() << why;
    return result;
  }
  for (const char* name : {"ip", "tc"}) {
    if (tool(std::string("command -v ") + name).exit_code == 0) continue;
    result.message() << "there is no command '" << name << "' (package iproute2)";
    return result;
  }
  try {
    const Wire wire;
  } catch (const std::exception& error) {
    result.message() << "network namespaces cannot be made here: " << error.what();
    return result;
  }
  return {true};
}

boost::test_tools::assertion_result wires_can_be_slow(boost::unit_test::test_unit_id) {
  try {
    const Wire wire(1ms);
    return {true};
  } catch (const std::exception& error) {
    boost::test_tools::assertion_result result(false);
    result.message() << "this kernel delays no packets (netem): " << error.what();
    return result;
  }
}

const char* const over_shared_memory = "shm,tcp";

// Rows to columns and to strided shards on four ranks: every rank reads from every other.
const char* const mesh_case = R"j({
  "name": "hosts", "states": ["m", "v"], "dtypes": {"v": "bf16"}, "scalars": {"step": 7, "note": "x"},
  "tensors": [{"fqn": "q", "shape": [1024, 900], "rule": "col"}, {"fqn": "o", "shape": [1001, 640], "rule": "row"},
              {"fqn": "n", "shape": [900], "rule": "rep"}, {"fqn": "s", "shape": [1]}],
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 4, "rules": {"col": {"mesh": [2, 2], "placements": ["S(0)", "S(1)"]},
    "row": {"mesh": [2, 2], "placements": ["SS(0,2)", "S(0)"], "order": "tp_first"}, "*": {"replicated": true}}}
})j";

// Bytes per pair (source, target) in the output of `shardwire plan`.
std::map<std::pair<int, int>, double> planned_bytes(const File& text) {
  const CommandResult planned = run_command({"plan", "--json", text.path()});
  BOOST_REQUIRE_MESSAGE(planned.exit_code == 0, planned.err);
  std::map<std::pair<int, int>, double> result;
  const Json plan = Json::parse(planned.out);
  for (const Json& piece : plan["pieces"]) {
    result[{piece["src"].get<int>(), piece["dst"].get<int>()}] += piece["bytes"].get<double>();
  }
  return result;
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// As torchrun sets them, and `more`.
Variables variables_of(int ranks, const Variables& more) {
  Variables all{{"WORLD_SIZE", std::to_string(ranks)}, {"MASTER_ADDR", Wire::address('a')}, {"MASTER_PORT", "29500"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A job key that both hosts read.
struct KeyFile : File {
  KeyFile() : File("key") {
    const CommandResult made = run_command({"key", path()});
    BOOST_REQUIRE_MESSAGE(made.exit_code == 0, made.err);
  }
  [[nodiscard]] Variables variables() const { return {{"SHARDWIRE_JOB_KEY_FILE", path()}}; }
};

struct Job {
  std::array<CommandResult, 2> hosts;
  Json report;  ///< rank 0's
};

// Ranks 0 and 1 on one host, 2 and 3 on the other, started as torchrun starts them, with a key of their own.
Job run_job(const Wire& wire, const File& text, const std::string& transports, std::vector<std::string> more,
            bool containers = false) {
  const File report("report.json");
  const KeyFile key;
  std::vector<std::unique_ptr<RunningCommand>> running;
  for (const char end : {'a', 'b'}) {
    const Host host{.network = wire.network(end),
                    .containers = containers,
                    .ranks = end == 'a' ? std::vector{0, 1} : std::vector{2, 3}};
    std::vector<std::string> words{command_path(), "run", text.path(), "--transport", transports,
                                   "--timeout",    "30",  "--report",  report.path()};
    words.insert(words.end(), more.begin(), more.end());
    running.push_back(std::make_unique<RunningCommand>(host.command(words), "", variables_of(4, key.variables())));
  }
  Job job;
  for (std::size_t host = 2; host-- > 0;) job.hosts[host] = running[host]->wait(100s);
  job.report = report.json();
  return job;
}

void check_job(const Job& job) {
  for (const CommandResult& host : job.hosts) {
    BOOST_TEST(!host.timed_out);
    BOOST_TEST(host.exit_code == 0, host.err);
  }
  BOOST_REQUIRE(job.report.is_object());
  BOOST_TEST(job.report["verified"] == true);
}

double moved(const std::map<std::pair<int, int>, double>& planned, bool between_hosts) {
  double sum = 0;
  for (const auto& [pair, bytes] : planned) {
    if (pair.first != pair.second && (pair.first / 2 != pair.second / 2) == between_hosts) sum += bytes;
  }
  return sum;
}

// packed or zcopy, whichever is cheapest: both use messages.
std::string reached_by(const std::string& path) {
  return path == "tcp/packed" || path == "tcp/zcopy" ? "messages" : path;
}

// Checks each line of the report: the bytes per source, and the path, which is `same_host` or the wire.
void check_paths(const Json& report, const std::map<std::pair<int, int>, double>& planned,
                 const std::string& same_host) {
  std::map<std::pair<int, int>, double> arrived;
  for (const Json& target : report["ranks"]) {
    const int to = target["rank"].get<int>();
    for (const Json& peer : target["peers"]) {
      const int from = peer["rank"].get<int>();
      arrived[{from, to}] += peer["bytes"].get<double>();
      const std::string expected = from == to ? "local" : from / 2 == to / 2 ? same_host : "messages";
      BOOST_TEST(reached_by(peer["path"]) == expected, "rank " << from << " to rank " << to << " by " << peer["path"]);
    }
  }
  BOOST_TEST((arrived == planned));
}

}  // namespace

}  // namespace hosts

BOOST_AUTO_TEST_SUITE(hosts, *boost::unit_test::precondition(wires_can_be_laid))

BOOST_AUTO_TEST_CASE(ranks_map_memory_on_their_host_and_use_the_wire_between_hosts) {
  const Wire wire;
  const File text("case.json", mesh_case);
  const auto planned = planned_bytes(text);
  const Job job = run_job(wire, text, over_shared_memory, {});
  check_job(job);
  check_paths(job.report, planned, "shm/mapped");
  BOOST_TEST(job.report["methods"]["packed"].get<double>() + job.report["methods"]["zcopy"].get<double>() ==
             moved(planned, true));
  BOOST_TEST(job.report["methods"]["mapped"] == moved(planned, false));
  // Bytes between hosts went over the wire, and bytes within a host did not.
  const double sent = wire.sent_bytes('a') + wire.sent_bytes('b');
  BOOST_TEST(sent >= moved(planned, true));
  BOOST_TEST(sent <= 1.2 * moved(planned, true) + 1e6);
  BOOST_TEST(job.hosts[0].out.find(Wire::device('a')) != std::string::npos, job.hosts[0].out);
}

// The containers share only their host's network, so local sockets connect them.
BOOST_AUTO_TEST_CASE(ranks_in_containers_of_one_host_map_each_others_memory) {
  const Wire wire;
  const File text("case.json", mesh_case);
  const auto planned = planned_bytes(text);
  const Job job = run_job(wire, text, over_shared_memory, {"--repeat", "2", "--verify", "digest"}, true);
  check_job(job);
  check_paths(job.report, planned, "shm/mapped");
}

BOOST_AUTO_TEST_CASE(ranks_without_shared_memory_use_tcp_for_everything) {
  const Wire wire;
  const File text("case.json", mesh_case);
  const auto planned = planned_bytes(text);
  const Job job = run_job(wire, text, "tcp", {});
  check_job(job);
  check_paths(job.report, planned, "messages");
  BOOST_TEST(job.report["bytes"]["moved"] == moved(planned, true) + moved(planned, false));
  BOOST_TEST(wire.sent_bytes('a') + wire.sent_bytes('b') >= moved(planned, true));
}

BOOST_AUTO_TEST_CASE(two_restores_in_a_row_with_digests) {
  const Wire wire;
  const File text("case.json", mesh_case);
  const auto planned = planned_bytes(text);
  const Job job = run_job(wire, text, "tcp", {"--repeat", "2", "--verify", "digest"});
  check_job(job);
  check_paths(job.report, planned, "messages");
  BOOST_TEST(job.report["repeats"].size() == 2);
  BOOST_TEST(wire.sent_bytes('a') + wire.sent_bytes('b') >= 2 * moved(planned, true));
}

BOOST_AUTO_TEST_CASE(restores_in_a_row_over_shared_memory_and_the_wire) {
  const Wire wire;
  const File text("case.json", mesh_case);
  const auto planned = planned_bytes(text);
  const Job job = run_job(wire, text, over_shared_memory, {"--repeat", "4"});
  check_job(job);
  check_paths(job.report, planned, "shm/mapped");
}

BOOST_AUTO_TEST_CASE(hosts_far_from_each_other_restore_over_a_wire_with_delay,
                     *boost::unit_test::precondition(wires_can_be_slow)) {
  const Wire wire(5ms);
  const File text("case.json", mesh_case);
  const auto planned = planned_bytes(text);
  const Job job = run_job(wire, text, over_shared_memory, {"--repeat", "2"});
  check_job(job);
  check_paths(job.report, planned, "shm/mapped");
}

BOOST_AUTO_TEST_CASE(a_host_with_little_staging_is_served_through_one_slot) {
  const Wire wire;
  const File text("case.json", mesh_case);
  const auto planned = planned_bytes(text);
  const Job job = run_job(wire, text, over_shared_memory, {"--staging", "64K", "--verify", "digest"});
  check_job(job);
  check_paths(job.report, planned, "shm/mapped");
  BOOST_TEST(job.report["staging"]["peak"] <= 64 << 10);
}

// Nobody of another host is admitted without a key, unless that is asked for.
BOOST_DATA_TEST_CASE(a_job_without_a_key_stays_on_its_host_unless_any_may_join,
                     boost::unit_test::data::make({false, true}), open) {
  const Wire wire;
  const File text("case.json", mesh_case);
  const Variables more = open ? Variables{{"SHARDWIRE_ALLOW_OPEN_NETWORK", "1"}} : Variables{};
  std::vector<std::unique_ptr<RunningCommand>> running;
  for (const char end : {'a', 'b'}) {
    const Host host{.network = wire.network(end), .ranks = end == 'a' ? std::vector{0, 1} : std::vector{2, 3}};
    const std::vector<std::string> words{command_path(), "run", text.path(), "--transport", "tcp", "--timeout", "30"};
    running.push_back(std::make_unique<RunningCommand>(host.command(words), "", variables_of(4, more)));
  }
  const CommandResult other = running[1]->wait(100s);
  BOOST_TEST((other.exit_code == 0) == open, other.err);
  if (open) {
    const CommandResult first = running[0]->wait(100s);
    BOOST_TEST(first.exit_code == 0, first.err);
    BOOST_TEST(first.err.find("any process that connects can join") != std::string::npos, first.err);
  } else {
    BOOST_TEST(other.err.find("the job has no key, and member ") != std::string::npos, other.err);
    BOOST_TEST(other.err.find("shardwire key FILE") != std::string::npos, other.err);
    BOOST_TEST(other.err.find("SHARDWIRE_ALLOW_OPEN_NETWORK=1") != std::string::npos, other.err);
  }
}

// One process per host: both directions are measured, over the wire's port, and in addition raw UCX reads if UCX
// exists.
BOOST_AUTO_TEST_CASE(pairs_of_hosts_are_measured_each_with_its_port) {
  const Wire wire;
  const File rows("rows.jsonl");
  const KeyFile key;
  std::vector<std::unique_ptr<RunningCommand>> running;
  for (const char end : {'a', 'b'}) {
    const Host host{.network = wire.network(end), .ranks = {end == 'a' ? 0 : 1}};
    running.push_back(std::make_unique<RunningCommand>(
        host.command({command_path(), "perf", "--pairs", "--transport", "tcp", "--runs", "4K,64K", "--bytes", "1M",
                      "--repeats", "1", "--against", "none", "--output", rows.path()}),
        "", variables_of(2, key.variables())));
  }
  std::string said;
  for (std::size_t host = 2; host-- > 0;) {
    const CommandResult result = running[host]->wait(100s);
    BOOST_TEST(result.exit_code == 0, result.err);
    said = result.err;
  }
  std::istringstream lines(rows.text());
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    BOOST_TEST(row.at("hosts") == 2);
    BOOST_REQUIRE(row.at("pairs").size() == 1);
    const auto target = row.at("pairs").at(0).at("target").get<std::string>();
    seen.insert(target.substr(0, 1) + " " + std::to_string(row.at("run_bytes").get<int>()));
    BOOST_TEST(row.at("bytes").at("moved") == 1 << 20);
    BOOST_REQUIRE(row.at("paths").size() == 1);
    BOOST_TEST(reached_by(row.at("paths").at(0).at("path")) == "messages");
    BOOST_TEST(row.at("paths").at(0).at("port") == Wire::device(target[0] == '0' ? 'a' : 'b'));
    const Json& nics = row.at("nics");
    BOOST_TEST(nics.at("count") == 1);
    const double each = nics.at("bytes_per_second_each").get<double>();
    BOOST_CHECK_CLOSE(each, row.at("bytes_per_second").get<double>(), 1e-6);
    // The kernel's line rate for a pair of virtual interfaces.
    BOOST_CHECK_CLOSE(nics.at("share_of_line").get<double>(), each / nics.at("line_bytes_per_second").get<double>(),
                      1e-6);
  }
  BOOST_TEST((seen == std::set<std::string>{"0 4096", "0 65536", "1 4096", "1 65536"}));
  BOOST_TEST(said.find("2 processes on 2 hosts") != std::string::npos, said);
  BOOST_TEST(said.find("Gbit/s") != std::string::npos, said);
}

BOOST_AUTO_TEST_SUITE_END()
