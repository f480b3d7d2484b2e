// SPDX-License-Identifier: Apache-2.0
#include "support/job.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace shardwire::test {

std::uint16_t free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = bind(descriptor, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(descriptor);
  if (!bound) throw std::runtime_error("no free port on the loopback interface");
  return ntohs(address.sin_port);
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

}  // namespace shardwire::test
