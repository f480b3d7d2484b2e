// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/fake_root.hpp"
#include "transport/config.hpp"
#include "transport/rdma.hpp"
#include "transport/transport.hpp"

BOOST_AUTO_TEST_SUITE(registry)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::transport;

namespace {

#if SHARDWIRE_HAVE_UCX || SHARDWIRE_HAVE_LIBFABRIC
bool is_loaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}
#endif

bool unsupported(const Error& error) {
  return error.code() == ErrorCode::unsupported;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_transport_has_a_name_of_its_own) {
  for (const Transport& transport : registered()) {
    BOOST_TEST(std::ranges::count(registered(), transport.name, &Transport::name) == 1);
    for (const Asked asked : {Asked::by_name, Asked::automatically}) {
      BOOST_TEST(!transport.probe(asked).detail.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(loopback_is_chosen_by_name_and_never_by_auto) {
  const Transport& loopback = choose("loopback");
  BOOST_TEST(loopback.name == "loopback");
  BOOST_TEST(loopback.probe(Asked::by_name).viable);
  BOOST_TEST(loopback.open()->name() == "loopback");
  for (const Transport* transport : select(automatic)) BOOST_TEST(transport->name != "loopback");
}

BOOST_AUTO_TEST_CASE(auto_takes_all_that_are_viable_in_the_order_of_the_table) {
  std::vector<const Transport*> expected;
  for (const Transport& transport : registered()) {
    if (transport.reach != Reach::process && transport.probe(Asked::automatically).viable)
      expected.push_back(&transport);
  }
  BOOST_TEST((select(automatic) == expected));
  BOOST_TEST(std::ranges::count(expected, "tcp", &Transport::name) == 1);
}

BOOST_AUTO_TEST_CASE(names_are_taken_from_a_list_in_the_order_of_the_table_and_once) {
  BOOST_TEST((select("tcp") == std::vector{&choose("tcp")}));
  BOOST_TEST((select("loopback,tcp,loopback") == std::vector{&choose("tcp"), &choose("loopback")}));
  BOOST_CHECK_EXCEPTION(select("tcp,"), Error, unsupported);
  BOOST_CHECK_EXCEPTION(select("tcp,auto"), Error, unsupported);
  BOOST_CHECK_EXCEPTION(select(""), Error, unsupported);
}

// These numbers determine the order in which paths are preferred.
BOOST_AUTO_TEST_CASE(no_two_transports_that_reach_other_processes_are_as_good_as_each_other) {
  std::vector<int> ranks;
  for (const Transport& transport : registered()) {
    if (transport.reach == Reach::process) continue;
    for (const int rank : {transport.preference.read, transport.preference.message}) {
      if (rank != 0) ranks.push_back(rank);
    }
  }
  std::ranges::sort(ranks);
  BOOST_TEST((std::ranges::adjacent_find(ranks) == ranks.end()));
}

BOOST_AUTO_TEST_CASE(an_unknown_name_is_refused_with_the_known_ones) {
  BOOST_CHECK_EXCEPTION(choose("carrier-pigeon"), Error, [](const Error& error) {
    const std::string what = error.what();
    return unsupported(error) && what.find("carrier-pigeon") != std::string::npos &&
           what.find("loopback") != std::string::npos;
  });
  BOOST_CHECK_EXCEPTION(choose(""), Error, unsupported);
}

BOOST_AUTO_TEST_CASE(a_collective_is_no_transport_and_says_what_it_moves) {
  BOOST_CHECK_EXCEPTION(choose("nccl"), Error, [](const Error& error) {
    const std::string what = error.what();
    BOOST_TEST_MESSAGE(what);
    return unsupported(error) && what.find("device memory") != std::string::npos;
  });
}

#if SHARDWIRE_HAVE_UCX
BOOST_AUTO_TEST_CASE(ucx_is_there_for_rdma_hardware_or_when_it_is_told_what_else_to_use) {
  const Transport& ucx = *std::ranges::find(registered(), "ucx", &Transport::name);
  const Viability hardware = probe_rdma();
  ::unsetenv("UCX_TLS");
  if (hardware.viable) {
    BOOST_TEST(choose("ucx").name == "ucx");
  } else {
    const Viability by_name = ucx.probe(Asked::by_name);
    BOOST_TEST(!by_name.viable);
    BOOST_TEST(by_name.detail == hardware.detail + "; set UCX_TLS to run it over TCP or shared memory");
    BOOST_CHECK_EXCEPTION(choose("ucx"), Error, unsupported);
    BOOST_CHECK_EXCEPTION(ucx.open(), Error, unsupported);
    BOOST_TEST(!is_loaded("/libucp.so"));
  }
  ::setenv("UCX_TLS", "tcp", 1);
  const Viability unasked = ucx.probe(Asked::automatically);
  BOOST_TEST(unasked.viable == hardware.viable);
  if (!hardware.viable) {
    BOOST_TEST(unasked.detail == hardware.detail);
    BOOST_TEST(!is_loaded("/libucp.so"));
  }
  BOOST_TEST(choose("ucx").probe(Asked::by_name).detail.starts_with("ucx 1."));
  BOOST_TEST(is_loaded("/libucp.so"));
  ::unsetenv("UCX_TLS");
}
#else
BOOST_AUTO_TEST_CASE(a_transport_that_is_not_in_the_build_says_why) {
  BOOST_CHECK_EXCEPTION(choose("ucx"), Error, [](const Error& error) {
    return unsupported(error) && std::string(error.what()).find(SHARDWIRE_UCX_DETAIL) != std::string::npos;
  });
}
#endif

#if SHARDWIRE_HAVE_LIBFABRIC
BOOST_AUTO_TEST_CASE(libfabric_is_there_for_its_hardware_or_when_it_is_told_what_else_to_use) {
  const Transport& libfabric = *std::ranges::find(registered(), "libfabric", &Transport::name);
  const Viability hardware = probe_libfabric_devices();
  const bool any = hardware.viable || probe_rdma().viable;
  ::unsetenv("FI_PROVIDER");
  if (!any) {
    BOOST_TEST(libfabric.probe(Asked::by_name).detail ==
               hardware.detail + ", nor another RDMA device; set FI_PROVIDER=tcp to run it over TCP");
    BOOST_CHECK_EXCEPTION(choose("libfabric"), Error, unsupported);
    BOOST_CHECK_EXCEPTION(libfabric.open(), Error, unsupported);
  }
  ::setenv("FI_PROVIDER", "tcp", 1);
  const Viability unasked = libfabric.probe(Asked::automatically);
  if (!hardware.viable) {
    BOOST_TEST(!unasked.viable);
    BOOST_TEST(unasked.detail == hardware.detail);
    BOOST_TEST(!is_loaded("/libfabric.so"));
  }
  const Viability told = libfabric.probe(Asked::by_name);
  BOOST_TEST(told.viable, told.detail);
  BOOST_TEST(told.detail.starts_with("libfabric "), told.detail);
  BOOST_TEST(is_loaded("/libfabric.so"));
  ::unsetenv("FI_PROVIDER");
}
#endif

BOOST_AUTO_TEST_CASE(hardware_of_libfabric_is_known_by_its_driver) {
  const FakeRoot root;
  const std::string infiniband = (root.path / "infiniband").string();
  const std::string cxi = (root.path / "cxi").string();
  const auto probed = [&] { return probe_libfabric_devices(infiniband, cxi); };
  BOOST_TEST(!probed().viable);
  BOOST_TEST(probed().detail == "no EFA or Slingshot device (under " + infiniband + " and " + cxi + ")");
  const auto drive = [&](const std::string& device, const std::string& driver) {
    const auto folder = root.path / "infiniband" / device / "device";
    std::filesystem::create_directories(folder);
    std::filesystem::create_symlink("../../../bus/pci/drivers/" + driver, folder / "driver");
  };
  drive("mlx5_0", "mlx5_core");
  BOOST_TEST(!probed().viable);
  drive("rdmap0s6", "efa");
  BOOST_TEST(probed().viable);
  BOOST_TEST(probed().detail == "rdmap0s6");
  std::filesystem::create_directories(root.path / "cxi" / "cxi0");
  BOOST_TEST(probed().detail == "cxi0, rdmap0s6");
}

BOOST_AUTO_TEST_CASE(rdma_hardware_is_a_device_with_an_active_port) {
  const FakeRoot root;
  const std::string folder = (root.path / "infiniband").string();
  BOOST_TEST(!probe_rdma(folder).viable);
  BOOST_TEST(probe_rdma(folder).detail == "no RDMA device (nothing under " + folder + ")");
  root.write("/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  root.write("/infiniband/mlx5_1/ports/2/state", "2: INIT\n");
  BOOST_TEST(!probe_rdma(folder).viable);
  BOOST_TEST(probe_rdma(folder).detail ==
             "no RDMA device with an active port (port 1 of mlx5_1 is DOWN, port 2 of mlx5_1 is INIT)");
  root.write("/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
  root.write("/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  BOOST_TEST(probe_rdma(folder).viable);
  BOOST_TEST(probe_rdma(folder).detail == "mlx5_0, rxe0");
}

BOOST_AUTO_TEST_CASE(ports_are_listed_that_are_active) {
  FakeRoot root;
  root.write("/sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE");
  root.write("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
  root.write("/sys/class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE");
  const std::vector<std::string> expected{"mlx5_0:2", "mlx5_1:1"};
  BOOST_TEST(active_ports((root.path / "sys/class/infiniband").string()) == expected, boost::test_tools::per_element());
  BOOST_TEST(active_ports("/nowhere").empty());
}

BOOST_AUTO_TEST_CASE(ports_are_left_out_that_the_user_has_not_named) {
  const std::vector<std::string> ports{"mlx5_0:1", "mlx5_0:2", "mlx5_10:1"};
  BOOST_TEST((chosen_ports(ports, "") == ports));
  BOOST_TEST((chosen_ports(ports, "all") == ports));
  BOOST_TEST((chosen_ports(ports, "eth0,mlx5_0:2") == std::vector<std::string>{"mlx5_0:2"}));
  BOOST_TEST((chosen_ports(ports, "mlx5_0") == std::vector<std::string>{"mlx5_0:1", "mlx5_0:2"}));
  BOOST_TEST(chosen_ports(ports, "mlx5_1:1,lo").empty());
  BOOST_TEST((chosen_ports(ports, "^mlx5_0:1,eth0") == std::vector<std::string>{"mlx5_0:2", "mlx5_10:1"}));
}

BOOST_AUTO_TEST_CASE(too_little_memory_to_pin_is_said_with_what_to_do) {
  BOOST_TEST(too_little_to_pin({}).empty());
  BOOST_TEST(too_little_to_pin(min_pinnable_bytes).empty());
  BOOST_TEST(too_little_to_pin(8 << 20).starts_with("this process may pin 8388608 bytes for RDMA"));
  BOOST_TEST(too_little_to_pin(0).find("ulimit -l unlimited") != std::string::npos);
  BOOST_TEST(too_little_to_pin(0).ends_with(how_to_pin_more(::geteuid())));
  BOOST_TEST(min_pinnable_bytes < ample_pinnable_bytes);
}

BOOST_AUTO_TEST_CASE(the_capability_is_advised_to_root_alone) {
  const std::string limit = "raise the limit (ulimit -l unlimited; docker: --ulimit memlock=-1)";
  BOOST_TEST(how_to_pin_more(0) == limit + ", or add the capability IPC_LOCK");
  BOOST_TEST(how_to_pin_more(1000) == limit + "; the capability IPC_LOCK of a container has no effect for user 1000");
}

BOOST_AUTO_TEST_CASE(libfabric_pins_with_providers_of_hardware_alone) {
  for (const char* pinning : {"", "verbs", "EFA", "tcp,cxi", "verbs;ofi_rxm", "^tcp", "^verbs,shm"}) {
    BOOST_TEST(leaves_hardware_providers(pinning), pinning);
  }
  for (const char* free : {"tcp", "tcp;ofi_rxm", "shm,net", "^verbs,efa,cxi"}) {
    BOOST_TEST(!leaves_hardware_providers(free), free);
  }
}

BOOST_AUTO_TEST_CASE(reads_use_those_of_the_chosen_transports_that_are_hardware) {
  BOOST_TEST(reading_transports("") == "rc_v,rc_x,dc_x");
  BOOST_TEST(reading_transports("all") == "rc_v,rc_x,dc_x");
  BOOST_TEST(reading_transports("ib") == "rc_v,rc_x,dc_x");
  BOOST_TEST(reading_transports("rc,tcp") == "rc_v,rc_x");
  BOOST_TEST(reading_transports("rc_mlx5,self") == "rc_x");
  BOOST_TEST(reading_transports("dc_x") == "dc_x");
  BOOST_TEST(reading_transports("^dc_x,tcp") == "rc_v,rc_x");
  BOOST_TEST(reading_transports("^ib") == "");
  BOOST_TEST(reading_transports("tcp") == "");
  BOOST_TEST(reading_transports("ud_v,posix") == "");
}

BOOST_AUTO_TEST_SUITE_END()
