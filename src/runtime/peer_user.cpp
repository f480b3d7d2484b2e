// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer_user.hpp"

#include <fmt/core.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

namespace shardwire {

namespace {

using GetEnd = int (*)(int, sockaddr*, socklen_t*);

// One end of a connection as proc_pid_net(5) writes it: 32-bit words of the address in the order of this machine, and the port.
struct End {
  bool v6 = false;
  std::uint32_t words[4] = {};
  std::uint16_t port = 0;
};

std::optional<End> end_of(const sockaddr& address) {
  End end;
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    end.words[3] = v4.sin_addr.s_addr;
    end.port = ntohs(v4.sin_port);
    return end;
  }
  if (address.sa_family != AF_INET6) return std::nullopt;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  std::memcpy(end.words, &v6.sin6_addr, sizeof end.words);
  end.v6 = !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
  end.port = ntohs(v6.sin6_port);
  return end;
}

std::optional<End> end_of(int socket, GetEnd get) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (get(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  return end_of(reinterpret_cast<const sockaddr&>(address));
}

// A socket of version 6 may have the version 4 address of its connection.
std::string text_of(const End& end, bool in_v6_table) {
  const auto& [v6, words, port] = end;
  if (!in_v6_table) return fmt::format("{:08X}:{:04X}", words[3], port);
  const std::uint32_t mapped = htonl(0xffff);
  return fmt::format("{:08X}{:08X}{:08X}{:08X}:{:04X}", words[0], words[1], v6 ? words[2] : mapped, words[3], port);
}

// Established only: a socket that its process has closed, or not accepted yet, counts as root's.
std::optional<uid_t> user_in_table(const char* path, const std::string& own_end, const std::string& other_end) {
  const std::string wanted = fmt::format(" {} {} 01 ", own_end, other_end);
  std::ifstream table(path);
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find(wanted);
    if (at == std::string::npos) continue;
    std::istringstream rest(line.substr(at + wanted.size()));
    std::string queues, timer, retransmissions;
    uid_t user = 0;
    if (rest >> queues >> timer >> retransmissions >> user) return user;
  }
  return std::nullopt;
}

// Whether an interface of this network namespace has the address of this end. Strangers of other hosts cost no more than this.
bool is_here(const End& end) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(found, ::freeifaddrs);
  const auto loopback = static_cast<std::uint8_t>(ntohl(end.words[3]) >> 24);
  if (!end.v6 && loopback == IN_LOOPBACKNET) return true;  // all of 127.0.0.0/8
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const auto here = end_of(*one->ifa_addr);
    if (here && here->v6 == end.v6 &&
        std::equal(std::begin(end.words) + (end.v6 ? 0 : 3), std::end(end.words),
                   std::begin(here->words) + (end.v6 ? 0 : 3))) {
      return true;
    }
  }
  return false;
}

// In a user namespace all users that it does not know look like this one.
bool stands_for_many(uid_t user) {
  uid_t overflow = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  if (user != overflow) return false;
  std::uint64_t inside = 1, outside = 1, count = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  return inside != 0 || outside != 0 || count != 0xffffffff;
}

std::optional<uid_t> user_of_local_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid == static_cast<uid_t>(-1)) {
    return std::nullopt;
  }
  return peer.uid;
}

std::optional<uid_t> user_between(const End& own, const End& other) {
  // The kernel may leave out a row while others are added and removed.
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::optional<uid_t> user;
    if (!own.v6 && !other.v6) {
      user = user_in_table("/proc/thread-self/net/tcp", text_of(other, false), text_of(own, false));
    }
    if (!user) user = user_in_table("/proc/thread-self/net/tcp6", text_of(other, true), text_of(own, true));
    if (user) return user;
  }
  return std::nullopt;
}

PeerUser judge(uid_t user) {
  return user == ::geteuid() && !stands_for_many(user) ? PeerUser::own : PeerUser::other;
}

}  // namespace

std::optional<uid_t> user_of_peer(int socket) {
  if (const auto user = user_of_local_peer(socket)) return user;
  const auto own = end_of(socket, ::getsockname);
  const auto other = end_of(socket, ::getpeername);
  return own && other && is_here(*other) ? user_between(*own, *other) : std::nullopt;
}

PeerUser peer_user(int socket) {
  if (const auto user = user_of_local_peer(socket)) return judge(*user);
  const auto other = end_of(socket, ::getpeername);
  if (other && !is_here(*other)) return PeerUser::other;
  const auto user = user_of_peer(socket);
  return user ? judge(*user) : PeerUser::unknown;
}

}  // namespace shardwire
