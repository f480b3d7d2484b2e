// SPDX-License-Identifier: Apache-2.0
// NICs, MTUs and subnets of the members of a job, from fake /sys folders.
#include "cli/doctor_links.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "support/fake_root.hpp"

BOOST_AUTO_TEST_SUITE(doctor_links)

namespace {

using namespace shardwire;
using namespace shardwire::cli;

/// Two sockets with one NUMA node and two processors each.
struct Host : test::FakeRoot {
  std::string name;

  explicit Host(std::string of_host = "a") : name(std::move(of_host)) {
    for (int processor = 0; processor < 4; ++processor) {
      const std::string number = std::to_string(processor);
      write("/sys/devices/system/cpu/cpu" + number + "/topology/physical_package_id", std::to_string(processor / 2));
    }
    write("/sys/devices/system/node/node0/cpulist", "0-1\n");
    write("/sys/devices/system/node/node1/cpulist", "2-3\n");
  }
  void port(const std::string& device, int node, const std::string& kind = "InfiniBand",
            const std::string& subnet = "fe80:0000:0000:0000") const {
    const std::string at = "/sys/class/infiniband/" + device;
    write(at + "/device/numa_node", std::to_string(node));
    write(at + "/ports/1/state", "4: ACTIVE");
    write(at + "/ports/1/link_layer", kind);
    write(at + "/ports/1/gids/0", subnet + ":0002:c903:0000:0001");
  }
  void interface(const std::string& of_interface, int mtu, int node = -1, const std::string& state = "up") const {
    const std::string at = "/sys/class/net/" + of_interface;
    write(at + "/operstate", state);
    write(at + "/mtu", std::to_string(mtu));
    if (node >= 0) write(at + "/device/numa_node", std::to_string(node));
  }
  /// A target rank that runs on these processors and receives through this port or interface.
  [[nodiscard]] MemberResult member(int rank, const std::string& carrier,
                                    const std::vector<int>& processors = {}) const {
    MemberResult result;
    result.member = rank;
    result.target = Rank{rank};
    PeerReport peer;
    peer.path = "ucx/read";
    peer.device = carrier;
    peer.bytes = 1;
    result.report.peers.push_back(peer);
    result.links = find_links(result.report.peers, processors, path.string());
    result.links.domain = result.links.host = name;
    return result;
  }
};

// "about subject says" of each flag.
std::vector<std::string> flagged(const std::vector<MemberResult>& results) {
  std::vector<std::string> all;
  for (const perf::Flag& flag : flag_links(results)) all.push_back(flag.about + " " + flag.subject + " " + flag.says);
  return all;
}

void require(const std::vector<std::string>& found, const std::vector<std::string>& expected) {
  BOOST_TEST(found == expected, boost::test_tools::per_element());
}

}  // namespace

BOOST_AUTO_TEST_CASE(links_are_active_ports_and_interfaces_that_are_up) {
  const Host host;
  host.port("mlx5_0", 1);
  host.port("mlx5_1", 0, "Ethernet");
  host.write("/sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0", "eth1");
  host.port("mlx5_2", 0);
  host.write("/sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN");
  host.interface("eth0", 1500, 0);
  host.interface("eth1", 9000);
  host.interface("eth2", 1500, 0, "down");
  host.interface("lo", 65536);
  const MemberLinks found = host.member(0, "rc_mlx5/mlx5_0:1", {3, 0, 2}).links;
  BOOST_TEST(found.sockets == (std::vector<int>{0, 1}), boost::test_tools::per_element());
  std::vector<std::string> texts;
  for (const MemberLink& one : found.links) {
    texts.push_back(one.name + " " + std::to_string(one.is_port) + " " + one.subnet + " " + std::to_string(one.mtu) +
                    " " + std::to_string(one.place.node) + " " + std::to_string(one.place.socket) +
                    (one.carries ? " carries" : ""));
  }
  require(texts, {"eth0 0  1500 0 0", "eth1 0  9000 -1 -1", "mlx5_0:1 1 fe80:0000:0000:0000 -1 1 1 carries",
                  "mlx5_1:1 1  9000 0 0"});
}

BOOST_AUTO_TEST_CASE(links_travel_with_results) {
  const Host host;
  host.port("mlx5_0", 1);
  const MemberResult sent = host.member(2, "rc_mlx5/mlx5_0:1", {0});
  std::optional<MemberResult> read;
  write_result(sent, [&](const std::string& text) { read = ResultReader().take(nlohmann::json::parse(text)); });
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(to_json(read->links) == to_json(sent.links));
  BOOST_TEST(read->links.links.size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_port_on_the_other_socket_is_wrong_if_another_is_near) {
  const Host host;
  host.port("mlx5_0", 0);
  host.port("mlx5_1", 1);
  require(flagged({host.member(0, "rc_mlx5/mlx5_1:1", {0}), host.member(1, "rc_mlx5/mlx5_1:1", {0, 1}),
                   host.member(2, "rc_mlx5/mlx5_1:1", {3}), host.member(3, "rc_mlx5/mlx5_0:1", {0})}),
          {"wrong NIC mlx5_1:1 of a is on socket 1 (NUMA node 1), and target ranks 0, 1, which receive through it, on "
           "socket 0: "
           "mlx5_0:1 is there, and UCX_NET_DEVICES=mlx5_0:1 selects it for ucx"});
}

BOOST_AUTO_TEST_CASE(ranks_far_from_the_only_nic_are_to_be_moved) {
  const Host host;
  host.port("mlx5_0", 0, "Ethernet");  // of another kind
  host.port("mlx5_1", 1);
  host.interface("eth0", 1500, 1);
  require(flagged({host.member(0, "rc_mlx5/mlx5_1:1", {0})}),
          {"NIC and CPU mlx5_1:1 of a is on socket 1 (NUMA node 1), and target ranks 0, which receive through it, on "
           "socket 0: "
           "numactl --cpunodebind=1, or srun --cpu-bind, brings them to it"});
  BOOST_TEST(flagged({host.member(0, "tcp 10.0.0.1 -> 10.0.0.2 (eth0)", {0})}).size() == 1);
}

BOOST_AUTO_TEST_CASE(near_shared_or_unknown_nics_are_not_flagged) {
  const Host host;
  host.port("mlx5_0", 0);
  host.port("mlx5_1", 1);
  host.port("mlx5_2", -1);
  MemberResult both = host.member(0, "rc_mlx5/mlx5_1:1", {0});
  both.links.links.front().carries = true;  // mlx5_0:1
  require(flagged({both}), {});
  require(flagged({host.member(0, "rc_mlx5/mlx5_1:1", {0, 3})}), {});  // runs on both sockets
  require(flagged({host.member(0, "rc_mlx5/mlx5_2:1", {0})}), {});
  require(flagged({host.member(0, "rc_mlx5/mlx5_1:1")}), {});
  require(flagged({host.member(0, "shared memory", {0})}), {});
  require(flagged({MemberResult{}}), {});
}

BOOST_AUTO_TEST_CASE(interfaces_of_one_name_need_one_mtu) {
  const Host a("a");
  const Host b("b");
  const Host c("c");
  a.interface("eth0", 9000);
  b.interface("eth0", 1500);
  c.interface("eth0", 9000);
  for (const Host* host : {&a, &b, &c}) host->interface("docker0", host == &a ? 1500 : 9000);  // carries nothing
  MemberResult source = b.member(1, "shared memory");
  source.target.reset();  // is only read from
  require(
      flagged({a.member(0, "tcp/eth0"), source, c.member(2, "tcp/eth0")}),
      {"MTU eth0 has an MTU of 1500 on b, 9000 on a, c: larger packets may be lost between them. Set the same MTU on "
       "all (ip link set dev INTERFACE mtu N)"});
  require(flagged({a.member(0, "tcp/eth0"), c.member(2, "tcp/eth0")}), {});
}

BOOST_AUTO_TEST_CASE(a_port_of_roce_has_the_mtu_of_its_interface) {
  const Host a("a");
  const Host b("b");
  for (const Host* host : {&a, &b}) {
    host->port("mlx5_0", 0, "Ethernet");
    host->write("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth" + host->name);
    host->interface("eth" + host->name, host == &a ? 4200 : 1500);
  }
  const std::vector<std::string> found = flagged({a.member(0, "rc_mlx5/mlx5_0:1"), b.member(1, "rc_mlx5/mlx5_0:1")});
  BOOST_REQUIRE(found.size() == 1);
  BOOST_TEST(found[0].starts_with("MTU mlx5_0:1 has an MTU of 1500 on b, 4200 on a:"), found[0]);
}

BOOST_AUTO_TEST_CASE(a_subnet_that_some_hosts_have_no_port_in_is_named) {
  const Host a("a");
  const Host b("b");
  const Host c("c");
  const Host ethernet("d");
  for (const Host* host : {&a, &b, &c}) host->port("mlx5_0", 0);
  a.port("mlx5_1", 0, "InfiniBand", "fe80:0000:0000:0001");
  b.port("mlx5_1", 0, "InfiniBand", "fe80:0000:0000:0001");
  ethernet.port("mlx5_0", 0, "Ethernet");
  const auto members = [&] {
    return std::vector{a.member(0, "tcp/eth0"), b.member(1, "tcp/eth0"), c.member(2, "tcp/eth0"),
                       ethernet.member(3, "tcp/eth0")};
  };
  require(
      flagged(members()),
      {"subnet fe80:0000:0000:0001 has mlx5_1:1 of a, mlx5_1:1 of b, and no InfiniBand port of c: without a router no "
       "port of theirs is reached from it. Look at the cables and at the subnet prefix of the subnet manager"});
  c.port("mlx5_1", 0, "InfiniBand", "fe80:0000:0000:0001");
  require(flagged(members()), {});
}

BOOST_AUTO_TEST_SUITE_END()
