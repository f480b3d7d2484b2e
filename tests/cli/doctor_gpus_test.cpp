// SPDX-License-Identifier: Apache-2.0
// Distances between GPUs and NICs, from a fake /sys and a runtime that only lists devices.
#include "cli/doctor_gpus.hpp"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwire/error.hpp"
#include "support/fake_root.hpp"
#include "support/partial_devices.hpp"

BOOST_AUTO_TEST_SUITE(doctor_gpus)

namespace {

using namespace shardwire;
using namespace shardwire::cli;
using test::FakeRoot;

/// GPUs by their PCI addresses.
class Gpus final : public test::PartialDevices {
 public:
  explicit Gpus(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}

  [[nodiscard]] std::string version() const override { return "CUDA 13.0"; }
  [[nodiscard]] int device_count() const override { return static_cast<int>(addresses_.size()); }
  [[nodiscard]] memory::DeviceDetails details(int device) const override {
    const std::string& address = addresses_[static_cast<std::size_t>(device)];
    if (address.empty()) throw Error(ErrorCode::transport_failed, "it has fallen off the bus");
    return {.name = "GPU", .bytes = 1u << 30, .pci_address = address, .gpu_direct = true, .dma_buf = dma_buf};
  }

  bool dma_buf = true;

 private:
  std::vector<std::string> addresses_;
};

GpuFindings find(const FakeRoot& root, std::vector<std::string> addresses) {
  return find_gpus({std::make_shared<Gpus>(std::move(addresses)), {}}, root.path.string());
}

/// Two sockets with two nodes each: nodes 0 and 1 are on socket 0, nodes 2 and 3 on socket 1.
struct Host : FakeRoot {
  Host() {
    for (int node = 0; node < 4; ++node) {
      const std::string number = std::to_string(node);
      write("/sys/devices/system/node/node" + number + "/cpulist", number + "-" + number + ",9\n");
      write("/sys/devices/system/cpu/cpu" + number + "/topology/physical_package_id", std::to_string(node / 2));
    }
  }
  void gpu(const std::string& address, int node) const {
    write("/sys/bus/pci/devices/" + address + "/numa_node", std::to_string(node));
  }
  void nic(const std::string& name, int node, const std::string& kind = "infiniband") const {
    write("/sys/class/" + kind + "/" + name + "/device/numa_node", std::to_string(node));
  }
  [[nodiscard]] std::vector<std::string> flagged(std::vector<std::string> addresses) const {
    std::vector<std::string> subjects;
    for (const perf::Flag& flag : flag_gpus(find(*this, std::move(addresses)), path.string())) {
      subjects.push_back(flag.subject + " " + flag.says);
    }
    return subjects;
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(without_a_runtime_there_is_the_reason) {
  const FakeRoot root;
  const GpuFindings findings = find_gpus({nullptr, "no driver"}, root.path.string());
  BOOST_TEST(findings.gpus.empty());
  BOOST_TEST(findings.why_none == "no driver");
  BOOST_TEST(flag_gpus(findings, root.path.string()).empty());
}

BOOST_AUTO_TEST_CASE(nics_of_the_same_node_are_near) {
  const Host host;
  host.gpu("0000:1b:00.0", 0);
  host.gpu("0000:ab:00.0", 2);
  host.nic("mlx5_1", 0);
  host.nic("mlx5_0", 0);
  host.nic("mlx5_2", 1);
  host.nic("eth0", 2, "net");  // if there are RDMA devices, other interfaces are ignored
  const GpuFindings findings = find(host, {"0000:1b:00.0", "0000:ab:00.0"});
  BOOST_REQUIRE(findings.gpus.size() == 2);
  BOOST_TEST(findings.version == "CUDA 13.0");
  BOOST_TEST(findings.gpus[0].place.node == 0);
  BOOST_TEST(findings.gpus[0].near_nics == (std::vector<std::string>{"mlx5_0", "mlx5_1"}),
             boost::test_tools::per_element());
  BOOST_TEST(findings.gpus[1].place.socket == 1);
  BOOST_TEST(findings.gpus[1].near_nics.empty());
}

BOOST_AUTO_TEST_CASE(the_nic_behind_the_same_switch_is_named_first) {
  const Host host;
  const std::string devices = "/sys/devices/pci0000:00/";
  const auto plug = [&](const std::string& at, const std::string& seen_as) {
    host.write(devices + at + "/numa_node", "0\n");
    const std::filesystem::path link = host.path.string() + seen_as;
    std::filesystem::create_directories(link.parent_path());
    std::filesystem::create_directory_symlink(host.path.string() + devices + at, link);
  };
  plug("0000:00:02.0/0000:1b:00.0", "/sys/bus/pci/devices/0000:1b:00.0");
  plug("0000:00:01.0/0000:0a:00.0", "/sys/class/infiniband/mlx5_0/device");
  plug("0000:00:02.0/0000:1c:00.0", "/sys/class/infiniband/mlx5_1/device");
  BOOST_TEST(find(host, {"0000:1b:00.0"}).gpus[0].near_nics == (std::vector<std::string>{"mlx5_1", "mlx5_0"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_gpu_whose_nics_are_all_on_another_socket_is_flagged) {
  const Host host;
  host.gpu("0000:1b:00.0", 0);
  host.gpu("0000:ab:00.0", 2);
  host.nic("mlx5_0", 1);  // another node of the same socket
  const std::vector<std::string> flags = host.flagged({"0000:1b:00.0", "0000:ab:00.0"});
  BOOST_REQUIRE(flags.size() == 1);
  BOOST_TEST(flags[0].starts_with("GPU 1 is on socket 1 and has no NIC there, only mlx5_0 (socket 0):"), flags[0]);
  host.nic("mlx5_1", 3);
  BOOST_TEST(host.flagged({"0000:1b:00.0", "0000:ab:00.0"}).empty());
}

BOOST_AUTO_TEST_CASE(a_gpu_that_nics_do_not_reach_is_flagged_with_the_reason) {
  const Host host;
  host.gpu("0000:1b:00.0", 0);
  host.nic("eth0", 0, "net");
  const auto gpus = std::make_shared<Gpus>(std::vector<std::string>{"0000:1b:00.0"});
  gpus->dma_buf = false;
  const auto flags = [&] { return flag_gpus(find_gpus({gpus, {}}, host.path.string()), host.path.string()); };
  BOOST_TEST(flags().empty());  // there is no NIC that could be flagged
  host.nic("mlx5_0", 0);
  BOOST_REQUIRE(flags().size() == 1);
  BOOST_TEST(flags()[0].says.starts_with("is staged through host memory: there is no nvidia_peermem"), flags()[0].says);
  host.write("/sys/module/nvidia_peermem/version", "1");
  BOOST_TEST(flags().empty());
  host.write("/sys/bus/pci/devices/0000:1b:00.0/iommu_group/type", "DMA-FQ\n");
  BOOST_REQUIRE(flags().size() == 1);
  BOOST_TEST(flags()[0].says.find("iommu=pt") != std::string::npos, flags()[0].says);
  host.write("/sys/bus/pci/devices/0000:1b:00.0/iommu_group/type", "identity\n");
  BOOST_TEST(flags().empty());
}

BOOST_AUTO_TEST_CASE(interfaces_count_where_there_is_no_rdma_device) {
  const Host host;
  host.gpu("0000:ab:00.0", 3);
  host.write("/sys/class/net/lo/address", "");  // not hardware
  host.nic("eth0", 0, "net");
  BOOST_TEST(host.flagged({"0000:ab:00.0"}).size() == 1);
  host.nic("cxi0", 2, "cxi");
  BOOST_TEST(host.flagged({"0000:ab:00.0"}).empty());
}

BOOST_AUTO_TEST_CASE(a_gpu_for_which_the_far_nic_was_chosen_is_flagged) {
  const Host host;
  host.gpu("0000:1b:00.0", 0);
  host.gpu("0000:ab:00.0", 2);
  for (const auto& [name, node] : {std::pair{"mlx5_0", 1}, std::pair{"mlx5_1", 3}, std::pair{"mlx5_2", -1}}) {
    host.nic(name, node);
    host.write("/sys/class/infiniband/" + std::string(name) + "/ports/1/state", "4: ACTIVE");
  }
  const auto flagged = [&](std::vector<std::string> gpus, const char* net_devices) {
    std::vector<std::string> all;
    for (const perf::Flag& flag : flag_gpus(find(host, std::move(gpus)), host.path.string(), net_devices)) {
      all.push_back(flag.about + " " + flag.subject + " " + flag.says);
    }
    return all;
  };
  BOOST_TEST(flagged({"0000:1b:00.0"}, "mlx5_1:1") ==
                 std::vector<std::string>{"wrong NIC GPU 0 is on socket 0, where UCX_NET_DEVICES allows no port, only "
                                          "mlx5_1:1: allow mlx5_0:1, which is there"},
             boost::test_tools::per_element());
  for (const char* const unknown_or_near : {"", "mlx5_0:1", "mlx5_2:1", "mlx5_0:1,mlx5_1:1"}) {
    BOOST_TEST(flagged({"0000:1b:00.0"}, unknown_or_near).empty(), unknown_or_near);
  }
  BOOST_TEST(flagged({"0000:1b:00.0", "0000:ab:00.0"}, "mlx5_1:1").empty());  // near the other one
}

BOOST_AUTO_TEST_CASE(what_the_kernel_does_not_say_is_not_flagged) {
  const Host host;
  BOOST_TEST(host.flagged({"0000:ab:00.0"}).empty());  // no NIC, and no such device
  host.nic("mlx5_0", -1);
  host.gpu("0000:ab:00.0", 0);
  BOOST_TEST(host.flagged({"0000:ab:00.0"}).empty());
  host.gpu("0000:ab:00.0", -1);
  host.nic("mlx5_0", 0);
  BOOST_TEST(host.flagged({"0000:ab:00.0"}).empty());
  BOOST_TEST(find(host, {"0000:ab:00.0"}).gpus[0].near_nics.empty());
}

BOOST_AUTO_TEST_CASE(a_gpu_that_fails_is_told_beside_the_others) {
  const Host host;
  const GpuFindings findings = find(host, {"0000:1b:00.0", ""});
  BOOST_TEST(findings.gpus.size() == 1);
  BOOST_TEST(findings.why_none == "it has fallen off the bus");
}

BOOST_AUTO_TEST_SUITE_END()
