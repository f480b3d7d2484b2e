// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/lifeline.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <limits>
#include <string>

#include "shardwire/error.hpp"

namespace shardwire::transport::ucx {
namespace {

// Creates a local socket and calls `use`, which is bind() or connect(), with the fabric's socket name.
template <typename Use>
support::Descriptor open_socket(std::uint64_t fabric, Use use) {
  // In the abstract name space: it leaves no file.
  const std::string name = fmt::format("shardwire-ucx-{:016x}", fabric);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  support::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket && use(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) socket.reset();
  return socket;
}

}  // namespace

Lifeline::Lifeline(std::uint64_t fabric) : socket_(open_socket(fabric, ::bind)), closed_on_fork_(socket_.get()) {
  if (socket_ && ::listen(socket_.get(), std::numeric_limits<int>::max()) == 0) return;
  throw Error(ErrorCode::out_of_resources, "cannot listen on a local socket");
}

support::Descriptor hold_lifeline(std::uint64_t fabric) {
  return open_socket(fabric, ::connect);
}

bool is_broken(const support::Descriptor& held) {
  if (!held) return false;
  pollfd entry{.fd = held.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace shardwire::transport::ucx
