// SPDX-License-Identifier: Apache-2.0
// Throughput of ports compared with their rate, from results of ranks and from a fake /sys.
#include "cli/doctor_ports.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/run_result.hpp"
#include "perf/measure/ports.hpp"
#include "support/fake_root.hpp"

BOOST_AUTO_TEST_SUITE(doctor_ports)

namespace {

using namespace shardwire;
using namespace shardwire::cli;

MemberResult result(int rank, double seconds, std::vector<perf::PortBytes> ports) {
  MemberResult result;
  result.member = rank;
  result.target = Rank{rank};
  result.report.seconds.move = seconds;
  result.ports = std::move(ports);
  return result;
}

PeerReport peer(ByteCount bytes, const char* path, const char* carrier) {
  PeerReport report;
  report.bytes = bytes;
  report.path = path;
  report.device = carrier;
  return report;
}

constexpr ByteCount giga = 1'000'000'000;

}  // namespace

BOOST_AUTO_TEST_CASE(what_came_is_added_up_by_port_and_told_from_what_the_kernel_says) {
  const test::FakeRoot root;
  root.write("/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  root.write("/sys/class/infiniband/mlx5_1/ports/1/rate", "200 Gb/sec (2X NDR)");
  root.write("/sys/class/net/lo/operstate", "unknown");
  const std::vector<PeerReport> peers{peer(5, "ucx/read", "ud_mlx5/mlx5_1:1, reads by rc_mlx5/mlx5_0:1"),
                                      peer(6, "ucx/packed", "ud_mlx5/mlx5_1:1, reads by rc_mlx5/mlx5_0:1"),
                                      peer(2, "libfabric/sieved_read", "verbs;ofi_rxm/mlx5_0"),
                                      peer(9, "tcp/packed", "tcp/lo"), peer(9, "shm/mapped", "shared memory")};
  const std::vector<perf::PortBytes> ports = perf::port_bytes(peers, root.path.string());
  BOOST_REQUIRE(ports.size() == 2U);
  BOOST_TEST(ports[0].port == "mlx5_0:1");
  BOOST_TEST(ports[0].bytes == 7U);
  BOOST_TEST(ports[0].line_bytes_per_second == 50e9);
  BOOST_TEST(ports[1].port == "mlx5_1:1");
  BOOST_TEST(ports[1].bytes == 6U);
  BOOST_TEST(ports[1].line_bytes_per_second == 25e9);
  BOOST_TEST(!ports[0].domain.empty());
}

BOOST_AUTO_TEST_CASE(ranks_of_a_host_share_a_port_and_those_of_others_have_their_own) {
  const std::vector<MemberResult> results{
      result(0, 1, {{"a", "mlx5_0:1", 20 * giga, 50e9}}), result(1, 2, {{"a", "mlx5_0:1", 60 * giga, 50e9}}),
      result(2, 2, {{"b", "mlx5_0:1", 10 * giga, 50e9}}), result(3, 0, {{"c", "mlx5_0:1", 0, 50e9}})};
  const std::vector<PortShare> shares = port_shares(results);
  BOOST_REQUIRE(shares.size() == 2U);
  BOOST_TEST((shares[0].targets == std::vector{Rank{0}, Rank{1}}));
  BOOST_TEST(shares[0].bytes_per_second == 40e9);
  BOOST_TEST(shares[0].share() == 0.8);
  BOOST_TEST(!shares[0].is_far_below);
  BOOST_TEST((shares[1].targets == std::vector{Rank{2}}));
  BOOST_TEST(shares[1].share() == 0.1);
  BOOST_TEST(shares[1].is_far_below);

  const auto healthy = nlohmann::json::parse(port_line(shares[0], true));
  BOOST_TEST(healthy["port"] == "mlx5_0:1");
  BOOST_TEST(healthy["share_of_line"] == 0.8);
  BOOST_TEST(!healthy.contains("flag"));
  const auto slow = nlohmann::json::parse(port_line(shares[1], true));
  BOOST_TEST(slow["flag"] == "slow port");
  const std::string text = port_line(shares[1], false);
  BOOST_TEST(text == "  slow port     mlx5_0:1 " + slow["says"].get<std::string>());
  BOOST_TEST(
      text.find("moved 5.00 GB/s to targets 2, 10 % of its line rate of 50.0 GB/s: far below") != std::string::npos,
      text);
}

BOOST_AUTO_TEST_CASE(little_is_over_before_it_says_anything) {
  const std::vector<MemberResult> results{result(0, 0.1, {{"a", "mlx5_0:1", 1'000'000, 50e9}})};
  BOOST_REQUIRE(port_shares(results).size() == 1U);
  BOOST_TEST(!port_shares(results).front().is_far_below);
}

BOOST_AUTO_TEST_CASE(ports_travel_with_results) {
  std::optional<MemberResult> read;
  write_result(result(1, 2, {{"a", "mlx5_0:1", 3, 50e9}}),
               [&](const std::string& text) { read = ResultReader().take(nlohmann::json::parse(text)); });
  BOOST_REQUIRE(read.has_value());
  BOOST_REQUIRE(read->ports.size() == 1U);
  BOOST_TEST(read->ports.front().domain == "a");
  BOOST_TEST(read->ports.front().port == "mlx5_0:1");
  BOOST_TEST(read->ports.front().bytes == 3U);
  BOOST_TEST(read->ports.front().line_bytes_per_second == 50e9);
}

BOOST_AUTO_TEST_SUITE_END()
