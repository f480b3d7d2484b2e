// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <boost/test/unit_test.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "support/descriptor_messages.hpp"
#include "support/job.hpp"
#include "wire/messages.hpp"

namespace shardwire::test {

/// Address at which a socket of this process listens.
struct Listening {
  sockaddr_storage address{};
  socklen_t length = sizeof address;

  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
  [[nodiscard]] bool local() const { return address.ss_family == AF_UNIX; }
  [[nodiscard]] std::uint16_t port() const {  // IPv4
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }
  /// Name of an abstract socket.
  [[nodiscard]] std::string name() const {
    const char* path = reinterpret_cast<const sockaddr_un*>(&address)->sun_path;
    return {path + 1, length - offsetof(sockaddr_un, sun_path) - 1};
  }
};

/// All of them, including those of other libraries.
inline std::vector<Listening> listening_sockets() {
  std::vector<Listening> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename().string());
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    Listening one;
    if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&one.address), &one.length) == 0) all.push_back(one);
  }
  return all;
}

/// A plain socket to the control port that uses no code of the library.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : Stranger() { connect(port); }
  explicit Stranger(const Listening& at) : Stranger(Family{at.address.ss_family}) { connect(at.raw(), at.length); }
  /// Creates its socket now, so that it needs no further descriptor to connect.
  Stranger() : Stranger(Family{AF_INET}) {}
  /// How much the kernel takes of what it has not read. Before connect().
  void receive_at_most(int bytes) {
    BOOST_REQUIRE_EQUAL(::setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  }
  void connect(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  void connect(const sockaddr* address, socklen_t length) {
    BOOST_REQUIRE_EQUAL(::connect(descriptor_, address, length), 0);
  }
  ~Stranger() { close(descriptor_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void send(const Bytes& bytes) { static_cast<void>(::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL)); }
  void send_frame(const Bytes& message) {
    Bytes frame;
    append_frame(frame, message);
    send(frame);
  }
  /// Local sockets only.
  void send(const Bytes& bytes, std::span<const int> descriptors) {
    support::send_with_descriptors(descriptor_, bytes, descriptors);
  }
  void shut_down() { shutdown(descriptor_, SHUT_WR); }
  static void append_frame(Bytes& to, const Bytes& message) {
    const std::uint64_t length = message.size();
    const auto* header = reinterpret_cast<const std::byte*>(&length);
    to.insert(to.end(), header, header + sizeof length);
    to.insert(to.end(), message.begin(), message.end());
  }
  /// All bytes until the other end closes; fails the test if it does not close.
  Bytes until_closed() {
    Bytes all;
    std::byte buffer[4096];
    while (true) {
      const ssize_t count = recv(descriptor_, buffer, sizeof buffer, 0);
      BOOST_REQUIRE_MESSAGE(count >= 0 || errno == ECONNRESET, "the member did not close the connection");
      if (count <= 0) return all;
      all.insert(all.end(), buffer, buffer + count);
    }
  }
  /// Whether the other end has closed the connection, or closes it within a moment.
  bool closed() {
    pollfd entry{descriptor_, POLLIN, 0};
    std::byte any{};
    return poll(&entry, 1, 1000) > 0 && recv(descriptor_, &any, 1, MSG_DONTWAIT) <= 0;
  }
  [[nodiscard]] bool still_open() const {
    std::byte any{};
    return recv(descriptor_, &any, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  wire::Message next() {
    Bytes header = exactly(8);
    std::uint64_t length = 0;
    std::memcpy(&length, header.data(), sizeof length);
    return wire::decode(exactly(static_cast<std::size_t>(length)));
  }

 private:
  struct Family {
    int number;
  };
  explicit Stranger(Family family) : descriptor_(socket(family.number, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{patience.count(), 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  Bytes exactly(std::size_t count) {
    Bytes bytes(count);
    const ssize_t got = recv(descriptor_, bytes.data(), count, MSG_WAITALL);
    BOOST_REQUIRE_EQUAL(got, static_cast<ssize_t>(count));
    return bytes;
  }
  int descriptor_;
};

/// The hello of member 1 of 2.
inline wire::Hello hello() {
  wire::Hello hello;
  hello.rank = 1;
  hello.world_size = 2;
  hello.host = "elsewhere";
  return hello;
}

/// Runs the whole handshake, so that later messages come from a member. Returns the other's hello.
inline wire::Hello introduce(Stranger& stranger, const wire::Hello& mine = hello()) {
  stranger.send_frame(wire::encode(mine));
  const wire::Message theirs = stranger.next();
  stranger.send_frame(wire::encode(wire::prove({}, true, mine, std::get<wire::Hello>(theirs))));
  BOOST_REQUIRE(std::holds_alternative<wire::Proof>(stranger.next()));
  return std::get<wire::Hello>(theirs);
}

}  // namespace shardwire::test
