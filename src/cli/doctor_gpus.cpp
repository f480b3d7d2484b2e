// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/output.hpp"
#include "cli/text.hpp"
#include "shardwire/error.hpp"
#include "transport/gpu_direct.hpp"
#include "transport/rdma.hpp"

namespace shardwire::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Nic {
  std::string name;
  fs::path device;
  Place place;
  bool reads = false;  // by itself
};

void add_nics(const std::string& folder, const std::string& root, bool reads, std::vector<Nic>& nics) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root + folder, none)) {
    const fs::path device = entry.path() / "device";
    if (fs::exists(device, none)) {
      nics.push_back({entry.path().filename(), device, place_of_device(device, root), reads});
    }
  }
}

// NICs that read by themselves; if there are none, all hardware NICs.
std::vector<Nic> find_nics(const std::string& root) {
  std::vector<Nic> nics;
  add_nics("/sys/class/infiniband", root, true, nics);
  add_nics("/sys/class/cxi", root, true, nics);
  if (nics.empty()) add_nics("/sys/class/net", root, false, nics);
  std::ranges::sort(nics, {}, &Nic::name);
  return nics;
}

// Length of the bus path from the root that two devices share: a common switch is nearer than the processor.
std::size_t shared_way(const fs::path& one, const fs::path& other) {
  std::error_code none;
  const fs::path first = fs::canonical(one, none);
  const fs::path second = fs::canonical(other, none);
  std::size_t shared = 0;
  for (auto a = first.begin(), b = second.begin(); a != first.end() && b != second.end() && *a == *b; ++a, ++b) {
    ++shared;
  }
  return shared;
}

GpuFinding find_gpu(const memory::DeviceRuntime& runtime, int number, std::vector<Nic> nics, const std::string& root) {
  GpuFinding finding{.number = number, .details = runtime.details(number)};
  const fs::path device = fs::path(root + "/sys/bus/pci/devices") / finding.details.pci_address;
  finding.place = place_of_device(device, root);
  std::ranges::stable_sort(nics, std::greater(), [&](const Nic& nic) { return shared_way(device, nic.device); });
  for (const Nic& nic : nics) {
    if (finding.place.node >= 0 && nic.place.node == finding.place.node) finding.near_nics.push_back(nic.name);
  }
  finding.why_no_gpu_direct = transport::why_no_gpu_direct(finding.details, transport::peer_memory(root));
  finding.iommu = transport::iommu_hint(finding.details.pci_address, root);
  return finding;
}

std::string list_of(const char* title, const std::string& items) {
  return items.empty() ? std::string() : fmt::format(", {} {}", title, items);
}

std::string line_of(const GpuFinding& gpu) {
  return fmt::format("  {:<14}{}, {}, {}{}{}{}, {}\n", gpu.number, gpu.details.name, human_bytes(gpu.details.bytes),
                     gpu.details.pci_address, gpu.place.node < 0 ? "" : fmt::format(", NUMA node {}", gpu.place.node),
                     list_of("accesses GPU", fmt::format("{}", fmt::join(gpu.details.peers, ", "))),
                     list_of("near", fmt::format("{}", fmt::join(gpu.near_nics, ", "))),
                     gpu.why_no_gpu_direct.empty() ? "GPUDirect" : "no GPUDirect: " + gpu.why_no_gpu_direct);
}

void flag_gpu_direct(const GpuFindings& findings, std::vector<perf::Flag>& flags) {
  for (const GpuFinding& gpu : findings.gpus) {
    const std::string subject = fmt::format("GPU {}", gpu.number);
    if (!gpu.why_no_gpu_direct.empty()) {
      flags.push_back({"GPUDirect", subject, "is staged through host memory: " + gpu.why_no_gpu_direct});
    } else if (!gpu.iommu.empty()) {
      flags.push_back({"GPUDirect", subject, gpu.iommu});
    }
  }
}

int socket_of_port(const std::string& port, const std::string& root) {
  const std::string device = port.substr(0, port.rfind(':'));
  return place_of_device(fs::path(root + "/sys/class/infiniband") / device / "device", root).socket;
}

void flag_chosen_ports(const GpuFindings& findings, const std::string& root, std::string_view net_devices,
                       std::vector<perf::Flag>& flags) {
  std::vector<std::string> known;  // active ports
  for (const std::string& port : transport::active_ports(root + "/sys/class/infiniband")) {
    if (socket_of_port(port, root) >= 0) known.push_back(port);
  }
  const std::vector<std::string> chosen = transport::chosen_ports(known, net_devices);
  const auto is_near = [&](const GpuFinding& gpu) {
    return [&](const std::string& port) { return socket_of_port(port, root) == gpu.place.socket; };
  };
  // A process that sees several GPUs may use one of them alone.
  const auto has_near = [&](const GpuFinding& gpu) { return std::ranges::any_of(chosen, is_near(gpu)); };
  if (chosen.empty() || std::ranges::any_of(findings.gpus, has_near)) return;
  for (const GpuFinding& gpu : findings.gpus) {
    const auto near = std::ranges::find_if(known, is_near(gpu));
    if (near == known.end()) continue;
    flags.push_back(
        {"wrong NIC", fmt::format("GPU {}", gpu.number),
         fmt::format("is on socket {}, where UCX_NET_DEVICES allows no port, only {}: allow {}, which is there",
                     gpu.place.socket, fmt::join(chosen, ", "), *near)});
  }
}

void print_json(const Json& row) {
  write_output(row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Json json_of(const GpuFinding& gpu, const std::string& version) {
  return {{"gpu", gpu.number},
          {"name", gpu.details.name},
          {"bytes", gpu.details.bytes},
          {"version", version},
          {"pci_address", gpu.details.pci_address},
          {"numa_node", gpu.place.node < 0 ? Json() : Json(gpu.place.node)},
          {"peers", gpu.details.peers},
          {"nics", gpu.near_nics},
          {"gpu_direct", gpu.why_no_gpu_direct.empty()},
          {"why_no_gpu_direct", gpu.why_no_gpu_direct}};
}

}  // namespace

GpuFindings find_gpus(const memory::FoundRuntime& found, const std::string& root) {
  GpuFindings findings{.why_none = found.why_not};
  if (!found.runtime) return findings;
  try {
    findings.version = found.runtime->version();
    const std::vector<Nic> nics = find_nics(root);
    for (int number = 0; number < found.runtime->device_count(); ++number) {
      findings.gpus.push_back(find_gpu(*found.runtime, number, nics, root));
    }
  } catch (const Error& error) {
    findings.why_none = error.what();
  }
  return findings;
}

std::vector<perf::Flag> flag_gpus(const GpuFindings& findings, const std::string& root, std::string_view net_devices) {
  std::vector<perf::Flag> flags;
  std::vector<Nic> nics = find_nics(root);
  if (std::ranges::any_of(nics, &Nic::reads)) flag_gpu_direct(findings, flags);
  flag_chosen_ports(findings, root, net_devices, flags);
  std::erase_if(nics, [](const Nic& nic) { return nic.place.socket < 0; });
  for (const GpuFinding& gpu : findings.gpus) {
    const auto shares_socket = [&](const Nic& nic) { return nic.place.socket == gpu.place.socket; };
    if (gpu.place.socket < 0 || nics.empty() || std::ranges::any_of(nics, shares_socket)) continue;
    std::string others;
    for (const Nic& nic : nics) {
      others += fmt::format("{}{} (socket {})", others.empty() ? "" : ", ", nic.name, nic.place.socket);
    }
    flags.push_back({"GPU and NIC", fmt::format("GPU {}", gpu.number),
                     fmt::format("is on socket {} and has no NIC there, only {}: its traffic goes through "
                                 "the link between the sockets",
                                 gpu.place.socket, others)});
  }
  return flags;
}

void print_gpus(const GpuFindings& findings, bool json) {
  if (json) {
    for (const GpuFinding& gpu : findings.gpus) print_json(json_of(gpu, findings.version));
    if (!findings.why_none.empty()) print_json({{"gpu", Json()}, {"why_none", findings.why_none}});
    return;
  }
  write_output(fmt::format("\nGPU{}\n", findings.version.empty() ? "" : fmt::format(" ({})", findings.version)));
  for (const GpuFinding& gpu : findings.gpus) write_output(line_of(gpu));
  if (!findings.why_none.empty()) write_output(fmt::format("  {:<14}{}\n", "none", findings.why_none));
}

}  // namespace shardwire::cli
