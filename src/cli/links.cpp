// SPDX-License-Identifier: Apache-2.0
#include "cli/links.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "perf/measure/ports.hpp"
#include "support/host_name.hpp"

namespace shardwire::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t subnet_digits = 19;  // the first half of a GID

std::string text_in(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int socket_of_processor(int processor, const std::string& root) {
  return number_in(fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/physical_package_id", root, processor));
}

MemberLink link_of(const perf::PortDetails& port, const std::string& root) {
  MemberLink link{.name = port.name(), .is_port = true};
  link.place = place_of_device(fs::path(root + "/sys/class/infiniband") / port.device / "device", root);
  const fs::path folder = port.folder;
  if (port.link_layer == "InfiniBand") {
    link.subnet = text_in(folder / "gids/0").substr(0, subnet_digits);
  } else if (const std::string interface = text_in(folder / "gid_attrs/ndevs/0"); !interface.empty()) {
    link.mtu = number_in(fs::path(root + "/sys/class/net") / interface / "mtu");
  }
  return link;
}

MemberLink link_of(const fs::path& interface, const std::string& root) {
  MemberLink link{.name = interface.filename()};
  link.mtu = number_in(interface / "mtu");
  link.place = place_of_device(interface / "device", root);
  return link;
}

}  // namespace

int number_in(const fs::path& path) {
  std::ifstream file(path);
  int number = -1;
  return file >> number ? number : -1;
}

// The socket is that of the node's first processor; a node may have memory only.
Place place_of_device(const fs::path& device, const std::string& root) {
  Place place{.node = number_in(device / "numa_node")};
  if (place.node < 0) return place;
  const int processor = number_in(fmt::format("{}/sys/devices/system/node/node{}/cpulist", root, place.node));
  if (processor >= 0) place.socket = socket_of_processor(processor, root);
  return place;
}

std::vector<int> own_processors() {
  std::vector<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

MemberLinks find_links(std::span<const PeerReport> peers, std::span<const int> processors, const std::string& root) {
  MemberLinks member{.domain = perf::domain_of_ports(), .host = support::host_name()};
  std::set<int> sockets;
  for (const int processor : processors) sockets.insert(socket_of_processor(processor, root));
  sockets.erase(-1);
  member.sockets.assign(sockets.begin(), sockets.end());
  for (const perf::PortDetails& port : perf::port_details(root)) {
    if (port.active()) member.links.push_back(link_of(port, root));
  }
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root + "/sys/class/net", none)) {
    const bool up = text_in(entry.path() / "operstate") == "up";
    if (up && entry.path().filename() != "lo") member.links.push_back(link_of(entry.path(), root));
  }
  std::ranges::sort(member.links, {}, &MemberLink::name);
  const std::vector<std::string> used = perf::ports_of(peers, root);
  for (MemberLink& link : member.links) link.carries = std::ranges::find(used, link.name) != used.end();
  return member;
}

Json to_json(const MemberLinks& member) {
  Json links = Json::array();
  for (const MemberLink& one : member.links) {
    links.push_back({one.name, one.is_port, one.subnet, one.mtu, one.place.node, one.place.socket, one.carries});
  }
  return {{"domain", member.domain}, {"host", member.host}, {"sockets", member.sockets}, {"links", std::move(links)}};
}

MemberLinks member_links_from(const Json& json) {
  MemberLinks member;
  json.at("domain").get_to(member.domain);
  json.at("host").get_to(member.host);
  json.at("sockets").get_to(member.sockets);
  for (const Json& one : json.at("links")) {
    member.links.push_back({one.at(0).get<std::string>(),
                            one.at(1).get<bool>(),
                            one.at(2).get<std::string>(),
                            one.at(3).get<int>(),
                            {one.at(4).get<int>(), one.at(5).get<int>()},
                            one.at(6).get<bool>()});
  }
  return member;
}

}  // namespace shardwire::cli
