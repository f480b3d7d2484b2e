// SPDX-License-Identifier: Apache-2.0
#include "support/job.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <random>
#include <utility>

#include "support/descriptors.hpp"
#include "support/each_element.hpp"

namespace shardwire::test {

namespace {

constexpr int first_port = 10'000;  // all are below the kernel's range for outgoing connections
constexpr int ports_of_block = 200;
constexpr int blocks = 110;

bool binds(int port) {
  const support::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Ports that no other test process takes while this one runs: each block has a name in the abstract namespace of sockets, which
// only one process can bind.
class Ports {
 public:
  Ports() {
    std::random_device random;
    for (int attempt = 0; attempt < 10'000 && !reserved_; ++attempt) {
      first_ = first_port + ports_of_block * std::uniform_int_distribution<int>(0, blocks - 1)(random);
      const std::string name = "shardwire-test-ports-" + std::to_string(first_);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::copy(name.begin(), name.end(), address.sun_path + 1);
      support::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
      if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) reserved_ = std::move(socket);
    }
  }
  std::uint16_t next() {
    for (int attempt = 0; attempt < ports_of_block; ++attempt) {
      const int port = first_ + next_++ % ports_of_block;
      if (binds(port)) return static_cast<std::uint16_t>(port);
    }
    throw std::runtime_error("no free port on the loopback interface");
  }

 private:
  support::Descriptor reserved_;
  int first_ = 0;
  int next_ = 0;
};

Ports ports;  // from the beginning: tests count the descriptors that they open

}  // namespace

std::uint16_t free_port() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return ports.next();
}

void on_members(int members, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::string failure;
  for (int member = 0; member < members; ++member) {
    threads.emplace_back([&, member] {
      try {
        body(member);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (failure.empty()) failure = "member " + std::to_string(member) + ": " + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw std::runtime_error(failure);
}

namespace {

// Mixes an element's global index and the seed.
std::uint64_t mixed(std::uint64_t index, std::uint64_t seed) {
  return (index + 1) * 0x9e3779b97f4a7c15ULL ^ seed * 0xd1b54a32d192ed03ULL ^ (index >> 7);
}

// The value of one element of `bytes` bytes.
void make_element(std::byte* at, ByteCount bytes, ElementCount index, std::uint64_t seed) {
  for (ByteCount done = 0; done < bytes; done += sizeof(std::uint64_t)) {
    const std::uint64_t word = mixed(static_cast<std::uint64_t>(index), seed + done);
    std::memcpy(at + done, &word, std::min<ByteCount>(sizeof word, bytes - done));
  }
}

}  // namespace

void TestShard::fill(std::uint64_t seed) {
  const ByteCount item = item_size(spec_.dtype);
  each_element(layout_.boxes_of(spec_.shape, place_), spec_.shape,
               [this, item, seed](ElementCount index, ElementCount at) {
                 make_element(data() + static_cast<ByteCount>(at) * item, item, index, seed);
               });
}

std::size_t TestShard::wrong(std::uint64_t seed) {
  const ByteCount item = item_size(spec_.dtype);
  std::size_t count = 0;
  Bytes expected(item);
  each_element(layout_.boxes_of(spec_.shape, place_), spec_.shape, [&](ElementCount index, ElementCount at) {
    make_element(expected.data(), item, index, seed);
    count += std::memcmp(data() + static_cast<ByteCount>(at) * item, expected.data(), item) != 0 ? 1 : 0;
  });
  return count;
}

}  // namespace shardwire::test
