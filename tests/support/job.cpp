// SPDX-License-Identifier: Apache-2.0
#include "support/job.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
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

// Stores into a buffer of this file, and what makes them: to check each would take sanitizers longer than all else that a test of
// sessions does.

// Mixes an element's global index and the seed.
__attribute__((no_sanitize("address", "thread", "undefined"))) std::uint64_t mixed(std::uint64_t index,
                                                                                   std::uint64_t seed) {
  return (index + 1) * 0x9e3779b97f4a7c15ULL ^ seed * 0xd1b54a32d192ed03ULL ^ (index >> 7);
}

template <typename Word>
__attribute__((no_sanitize("address", "thread", "undefined"))) void make_words(std::byte* to, ElementCount first,
                                                                               ElementCount count, std::uint64_t seed) {
  for (ElementCount i = 0; i < count; ++i, to += sizeof(Word)) {
    const auto word = static_cast<Word>(mixed(static_cast<std::uint64_t>(first + i), seed));
    std::memcpy(to, &word, sizeof word);
  }
}

// The values of `count` elements of `bytes` bytes each, from the global index `first` on.
__attribute__((no_sanitize("address", "thread", "undefined"))) void make_elements(std::byte* to, ByteCount bytes,
                                                                                  ElementCount first,
                                                                                  ElementCount count,
                                                                                  std::uint64_t seed) {
  switch (bytes) {
    case 1: return make_words<std::uint8_t>(to, first, count, seed);
    case 2: return make_words<std::uint16_t>(to, first, count, seed);
    case 4: return make_words<std::uint32_t>(to, first, count, seed);
    case 8: return make_words<std::uint64_t>(to, first, count, seed);
    default: break;
  }
  for (ElementCount i = 0; i < count; ++i) {
    std::byte* const at = to + static_cast<ByteCount>(i) * bytes;
    for (ByteCount done = 0; done < bytes; done += sizeof(std::uint64_t)) {
      const std::uint64_t word = mixed(static_cast<std::uint64_t>(first + i), seed + done);
      std::memcpy(at + done, &word, std::min<ByteCount>(sizeof word, bytes - done));
    }
  }
}

constexpr ElementCount elements_at_once = 4096;

}  // namespace

// Calls visit(memory, expected bytes, elements) for parts of this shard that are dense.
template <typename Visit>
void TestShard::each_part(std::uint64_t seed, const Visit& visit) {
  const ByteCount item = item_size(spec_.dtype);
  Bytes expected(static_cast<ByteCount>(elements_at_once) * item);
  const auto part = [&](ElementCount index, ElementCount at, ElementCount count) {
    make_elements(expected.data(), item, index, count, seed);
    visit(data() + static_cast<ByteCount>(at) * item, expected.data(), count);
  };
  each_row(layout_.boxes_of(spec_.shape, place_), spec_.shape,
           [&](ElementCount index, ElementCount at, ElementCount count, ElementCount stride) {
             const ElementCount most = stride == 1 ? elements_at_once : 1;
             for (ElementCount done = 0; done < count; done += most) {
               part(index + done, at + done * stride, std::min(most, count - done));
             }
           });
}

void TestShard::fill(std::uint64_t seed) {
  const ByteCount item = item_size(spec_.dtype);
  each_part(seed, [item](std::byte* memory, const std::byte* made, ElementCount count) {
    std::memcpy(memory, made, static_cast<ByteCount>(count) * item);
  });
}

std::size_t TestShard::wrong(std::uint64_t seed) {
  const ByteCount item = item_size(spec_.dtype);
  std::size_t found = 0;
  each_part(seed, [&](const std::byte* memory, const std::byte* expected, ElementCount count) {
    if (std::memcmp(memory, expected, static_cast<ByteCount>(count) * item) == 0) return;
    for (ByteCount at = 0; at < static_cast<ByteCount>(count) * item; at += item) {
      found += std::memcmp(memory + at, expected + at, item) != 0 ? 1 : 0;
    }
  });
  return found;
}

}  // namespace shardwire::test
