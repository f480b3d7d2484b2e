// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/ports.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "support/boot_id.hpp"

namespace shardwire::perf {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view reading_port = "reads by ";  // in the carrier of a path of ucx
constexpr double bits_of_gigabit = 1e9;
constexpr double bits_of_megabit = 1e6;
constexpr double bits_of_byte = 8;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// "4: ACTIVE"
std::string after_number(const std::string& line) {
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

bool any_gid(const fs::path& folder) {
  return std::ranges::any_of(entries(folder), [&](const std::string& index) {
    return first_line(folder / index).find_first_not_of("0:") != std::string::npos;
  });
}

// The words of `text`: letters, digits and the other characters of device and port names.
std::vector<std::string_view> words_of(std::string_view text) {
  const auto belongs = [](char one) {
    return std::isalnum(static_cast<unsigned char>(one)) != 0 ||
           std::string_view("_-:.@").find(one) != std::string_view::npos;
  };
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && belongs(text[end])) ++end;
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

struct Carrier {
  std::string port;
  double bytes_per_second = 0;
};

// Names that carriers may contain, read once.
struct Names {
  explicit Names(const std::string& root)
      : ports(port_details(root)), interface_folder(root + "/sys/class/net"), interfaces(entries(interface_folder)) {}

  // A device that is named without a port has one port.
  [[nodiscard]] Carrier find(std::string_view carrier) const {
    const std::vector<std::string_view> words = words_of(carrier);
    const auto named = [&](std::string_view name) { return std::ranges::find(words, name) != words.end(); };
    for (const PortDetails& port : ports) {
      if (named(port.name()) || named(port.device)) return {port.name(), port.line_bytes_per_second};
    }
    for (const std::string& name : interfaces) {
      if (!named(name)) continue;
      const double megabits =
          std::atof(first_line(interface_folder / name / "speed").c_str());  // -1: the kernel does not know it either
      return {name, std::max(0.0, megabits) * bits_of_megabit / bits_of_byte};
    }
    return {};
  }

  std::vector<PortDetails> ports;
  fs::path interface_folder;
  std::vector<std::string> interfaces;
};

}  // namespace

std::vector<PortDetails> port_details(const std::string& root) {
  std::vector<PortDetails> ports;
  for (const transport::RdmaPort& port : transport::rdma_ports(root + "/sys/class/infiniband")) {
    const fs::path at = port.folder;
    PortDetails details{port};
    details.physical_state = after_number(first_line(at / "phys_state"));
    details.link_layer = first_line(at / "link_layer");
    details.rate = first_line(at / "rate");
    details.line_bytes_per_second =
        std::atof(details.rate.c_str()) * bits_of_gigabit / bits_of_byte;  // "400 Gb/sec (4X NDR)"
    details.has_gid = any_gid(at / "gids");
    ports.push_back(std::move(details));
  }
  return ports;
}

double line_rate_of(std::string_view carrier, const std::string& root) {
  return Names(root).find(carrier).bytes_per_second;
}

std::string port_of(std::string_view carrier, const std::string& root) {
  return Names(root).find(carrier).port;
}

std::vector<std::string> ports_of(std::span<const PeerReport> peers, const std::string& root) {
  const Names names(root);
  std::set<std::string> ports;
  for (const PeerReport& peer : peers) ports.insert(names.find(moving_carrier(peer)).port);
  ports.erase("");
  return {ports.begin(), ports.end()};
}

std::string_view moving_carrier(const PeerReport& peer) {
  const std::string_view carrier = peer.device;
  const bool reads = peer.path.ends_with("/read") || peer.path.ends_with("/sieved_read");
  const std::size_t at = carrier.find(reading_port);
  if (at == std::string_view::npos) return carrier;
  return reads ? carrier.substr(at) : carrier.substr(0, at);
}

std::string domain_of_ports() {
  std::error_code none;
  return support::boot_id() + "/" + fs::read_symlink("/proc/self/ns/net", none).string();
}

std::vector<PortBytes> port_bytes(std::span<const PeerReport> peers, const std::string& root) {
  const Names names(root);
  std::vector<PortBytes> all;
  for (const PeerReport& peer : peers) {
    const Carrier by = names.find(moving_carrier(peer));
    if (by.bytes_per_second <= 0) continue;
    auto known = std::ranges::find(all, by.port, &PortBytes::port);
    if (known == all.end())
      known = all.insert(all.end(), PortBytes{domain_of_ports(), by.port, 0, by.bytes_per_second});
    known->bytes += peer.bytes;
  }
  return all;
}

}  // namespace shardwire::perf
