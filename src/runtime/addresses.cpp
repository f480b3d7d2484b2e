// SPDX-License-Identifier: Apache-2.0
#include "runtime/addresses.hpp"

#include <fmt/core.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>

#include "runtime/uv_handle.hpp"

namespace shardwire {

std::string host_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  uv_ip_name(reinterpret_cast<const sockaddr*>(&address), text.data(), text.size());
  return text.data();
}

sockaddr_storage socket_address(const SocketAddress& from) {
  sockaddr_storage address{};
  if (uv_ip4_addr(from.host.c_str(), from.port, reinterpret_cast<sockaddr_in*>(&address)) == 0) return address;
  if (uv_ip6_addr(from.host.c_str(), from.port, reinterpret_cast<sockaddr_in6*>(&address)) == 0) return address;
  throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is not a numeric address", from.host));
}

LocalAddress::LocalAddress(const std::string& name) {
  if (name.empty() || name.size() >= sizeof address_.sun_path) {
    throw Error(ErrorCode::invalid_argument, "the name of a local socket has 1 to 107 characters");
  }
  address_.sun_family = AF_UNIX;
  const bool is_path = name.front() == '/';
  std::memcpy(address_.sun_path + (is_path ? 0 : 1), name.data(), name.size());  // a zero ends a path, or begins a name
  length_ = static_cast<unsigned>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

namespace {

struct InterfaceAddress {
  std::string interface;
  std::string host;
  bool internal = false;
  sa_family_t family = AF_UNSPEC;
};

std::vector<InterfaceAddress> interface_addresses() {
  uv_interface_address_t* list = nullptr;
  int count = 0;
  check_uv(uv_interface_addresses(&list, &count), "uv_interface_addresses");
  std::vector<InterfaceAddress> all;
  for (int i = 0; i < count; ++i) {
    sockaddr_storage address{};
    std::memcpy(&address, &list[i].address, sizeof list[i].address);
    all.push_back({list[i].name, host_of(address), list[i].is_internal != 0, address.ss_family});
  }
  uv_free_interface_addresses(list, count);
  return all;
}

// Link-local addresses are unusable without an interface.
bool is_link_local(const InterfaceAddress& one) {
  return one.host.starts_with("fe80:") || one.host.starts_with("169.254.");
}

}  // namespace

std::string interface_of(const std::string& address) {
  try {
    for (const InterfaceAddress& one : interface_addresses()) {
      if (one.host == address) return one.interface;
    }
  } catch (const Error&) {  // no interfaces listed
  }
  return {};
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

std::string resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  if (status != 0) {
    throw Error(host.empty() ? ErrorCode::invalid_argument : ErrorCode::timed_out,
                fmt::format("cannot resolve host '{}': {}", host, gai_strerror(status)));
  }
  // IPv4 first: launchers give out IPv4 addresses, and both ends have to pick the same family.
  const addrinfo* chosen = found;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET) {
      chosen = one;
      break;
    }
  }
  sockaddr_storage address{};
  std::memcpy(&address, chosen->ai_addr, std::min<std::size_t>(chosen->ai_addrlen, sizeof address));
  return host_of(address);
}

std::string interface_address(const std::string& interface_or_address) {
  std::string result;
  std::string known;
  for (const auto& [interface, host, internal, family] : interface_addresses()) {
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", interface, host);
    const bool matches = interface_or_address == interface || interface_or_address == host;
    if (matches && (result.empty() || family == AF_INET)) result = host;
  }
  if (result.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("no network interface '{}' here; there are: {}", interface_or_address, known));
  }
  return result;
}

std::vector<std::string> reachable_addresses() {
  std::vector<InterfaceAddress> all = interface_addresses();
  const auto external = [](const InterfaceAddress& one) { return !one.internal && !is_link_local(one); };
  if (std::any_of(all.begin(), all.end(), external)) std::erase_if(all, std::not_fn(external));
  std::stable_partition(all.begin(), all.end(), [](const auto& one) { return one.family == AF_INET; });
  std::vector<std::string> hosts;
  for (InterfaceAddress& one : all) hosts.push_back(std::move(one.host));
  return hosts;
}

}  // namespace shardwire
