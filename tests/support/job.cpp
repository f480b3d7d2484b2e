// SPDX-License-Identifier: Apache-2.0
#include "support/job.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <random>

#include "support/each_element.hpp"

namespace shardwire::test {

// Below the kernel's range for outgoing connections, whose ports other tests running now could receive.
std::uint16_t free_port() {
  static std::mt19937 random{std::random_device{}()};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto port = static_cast<std::uint16_t>(std::uniform_int_distribution<int>(10'000, 32'000)(random));
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const bool bound = bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    close(descriptor);
    if (bound) return port;
  }
  throw std::runtime_error("no free port on the loopback interface");
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
