// SPDX-License-Identifier: Apache-2.0
// Properties of ports and warnings about them, from a fake /sys.
#include "perf/measure/ports.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "perf/measure/port_flags.hpp"

BOOST_AUTO_TEST_SUITE(ports)

namespace {

using namespace shardwire;
using namespace shardwire::perf;

// A temporary root folder, removed by the destructor.
class Root {
 public:
  Root() : path_(std::filesystem::temp_directory_path() / ("shardwire-ports-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Root() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  [[nodiscard]] std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) const {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void port(const std::string& device, const std::string& state, const std::string& physical, const std::string& rate,
            const std::string& gid = "fe80:0000:0000:0000:0000:0000:0000:0001") const {
    const std::string at = "sys/class/infiniband/" + device + "/ports/1/";
    write(at + "state", state);
    write(at + "phys_state", physical);
    write(at + "rate", rate);
    write(at + "link_layer", "InfiniBand");
    write(at + "gids/0", "0000:0000:0000:0000:0000:0000:0000:0000");
    write(at + "gids/1", gid);
  }
  void good_port(const std::string& device) const { port(device, "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)"); }
  void device_files() const { write("dev/infiniband/uverbs0", ""); }

 private:
  std::filesystem::path path_;
};

// "about subject" of each warning.
std::multiset<std::string> flagged(const Root& root, const std::optional<ByteCount>& pinnable = {},
                                   const std::optional<ByteCount>& needed = {}) {
  std::multiset<std::string> out;
  for (const Flag& flag : find_flags(pinnable, needed, root.path())) out.insert(flag.about + " " + flag.subject);
  return out;
}
std::string said(const Root& root, const std::optional<ByteCount>& pinnable = {},
                 const std::optional<ByteCount>& needed = {}) {
  std::string all;
  for (const Flag& flag : find_flags(pinnable, needed, root.path())) all += flag.says + "\n";
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_host_without_a_device_has_no_ports_and_no_flags) {
  const Root root;
  BOOST_TEST(port_details(root.path()).empty());
  BOOST_TEST(flagged(root, 0).empty());
}

BOOST_AUTO_TEST_CASE(a_port_tells_its_state_and_rate) {
  const Root root;
  root.good_port("mlx5_0");
  const auto found = port_details(root.path());
  BOOST_REQUIRE(found.size() == 1);
  BOOST_TEST(found[0].name() == "mlx5_0:1");
  BOOST_TEST(found[0].active());
  BOOST_TEST(found[0].physical_state == "LinkUp");
  BOOST_TEST(found[0].line_bytes_per_second == 50e9);
  BOOST_TEST(found[0].has_gid);
}

BOOST_AUTO_TEST_CASE(a_carrier_names_the_port_or_interface_behind_it) {
  const Root root;
  root.good_port("mlx5_1");
  root.good_port("mlx5_10");
  root.write("sys/class/net/eth0/speed", "25000");
  root.write("sys/class/net/lo/operstate", "unknown");
  root.write("sys/class/net/veth/speed", "-1");
  BOOST_TEST(port_of("rc_verbs/mlx5_1:1", root.path()) == "mlx5_1:1");
  BOOST_TEST(port_of("rc_mlx5/mlx5_10:1", root.path()) == "mlx5_10:1");
  BOOST_TEST(line_rate_of("rc_verbs/mlx5_1:1", root.path()) == 50e9);
  BOOST_TEST(port_of("from 10.0.0.1 (eth0) to 10.0.0.2", root.path()) == "eth0");
  BOOST_TEST(line_rate_of("tcp/eth0", root.path()) == 25e9 / 8);
  BOOST_TEST(line_rate_of("tcp/lo", root.path()) == 0);
  BOOST_TEST(port_of("tcp/lo", root.path()) == "lo");
  BOOST_TEST(line_rate_of("tcp/veth", root.path()) == 0);
  BOOST_TEST(port_of("cross-memory attach", root.path()) == "");
}

BOOST_AUTO_TEST_CASE(nothing_is_flagged_where_all_is_well) {
  const Root root;
  root.good_port("mlx5_0");
  root.good_port("mlx5_1");
  root.device_files();
  BOOST_TEST(flagged(root).empty());
}

BOOST_AUTO_TEST_CASE(a_port_that_is_down_is_flagged_with_what_to_do) {
  const Root root;
  root.good_port("mlx5_0");
  root.port("mlx5_1", "1: DOWN", "3: Disabled", "10 Gb/sec (4X SDR)");
  root.port("mlx5_2", "2: INIT", "5: LinkUp", "400 Gb/sec (4X NDR)");
  root.port("mlx5_3", "1: DOWN", "2: Polling", "10 Gb/sec (4X SDR)");
  root.device_files();
  BOOST_TEST((flagged(root) == std::multiset<std::string>{"port mlx5_1:1", "port mlx5_2:1", "port mlx5_3:1"}));
  for (const char* text :
       {"is DOWN (Disabled)", "switched off", "no subnet manager", "is DOWN (Polling)", "the cable"}) {
    BOOST_TEST(said(root).find(text) != std::string::npos, text);
  }
}

BOOST_AUTO_TEST_CASE(a_link_that_is_slower_than_others_of_the_host_is_flagged) {
  const Root root;
  root.good_port("mlx5_0");
  root.port("mlx5_1", "4: ACTIVE", "5: LinkUp", "200 Gb/sec (2X NDR)");
  root.device_files();
  BOOST_TEST((flagged(root) == std::multiset<std::string>{"link rate mlx5_1:1"}));
  BOOST_TEST(said(root).find("runs at 200 Gb/sec (2X NDR), others of this host at 400 Gb/sec") != std::string::npos,
             said(root));
}

BOOST_AUTO_TEST_CASE(a_port_without_an_address_is_flagged) {
  const Root root;
  root.port("rxe0", "4: ACTIVE", "5: LinkUp", "10 Gb/sec (4X)", "0000:0000:0000:0000:0000:0000:0000:0000");
  root.device_files();
  BOOST_TEST((flagged(root) == std::multiset<std::string>{"GID rxe0:1"}));
}

BOOST_AUTO_TEST_CASE(device_files_that_a_container_was_not_given_are_flagged) {
  const Root root;
  root.good_port("mlx5_0");
  BOOST_TEST((flagged(root) == std::multiset<std::string>{"device files /dev/infiniband"}));
  BOOST_TEST(said(root).find("the kernel has mlx5_0") != std::string::npos, said(root));
}

BOOST_AUTO_TEST_CASE(a_small_limit_of_locked_memory_is_flagged_unless_no_limit_holds) {
  const Root root;
  root.good_port("mlx5_0");
  root.device_files();
  BOOST_TEST((flagged(root, 64 << 10) == std::multiset<std::string>{"locked memory RLIMIT_MEMLOCK"}));
  BOOST_TEST(said(root, 64 << 10) ==
             "is 65536 bytes, and RDMA pins all that is read: " + transport::how_to_pin_more(::geteuid()) + "\n");
  BOOST_TEST(flagged(root).empty());
  BOOST_TEST(flagged(root, ByteCount{1} << 30).empty());
}

BOOST_AUTO_TEST_CASE(locked_memory_is_judged_by_what_a_case_needs) {
  const Root root;
  root.good_port("mlx5_0");
  root.device_files();
  constexpr ByteCount limit = 8u << 20;
  BOOST_TEST(flagged(root, limit, limit).empty());
  BOOST_TEST((flagged(root, limit, limit + 1) == std::multiset<std::string>{"locked memory RLIMIT_MEMLOCK"}));
  BOOST_TEST(said(root, limit, limit + 1).find("up to 8388609 bytes in a rank of this case") != std::string::npos);
  BOOST_TEST(flagged(root, {}, limit).empty());  // no limit applies
}

BOOST_AUTO_TEST_SUITE_END()
