// SPDX-License-Identifier: Apache-2.0
#include "runtime/socket_listener.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "runtime/peer_user.hpp"
#include "runtime/socket_stream.hpp"

namespace shardwire {

namespace {

constexpr int max_waiting = 1024;  // connections waiting for accept
constexpr int max_accepted_at_once = 64;
constexpr std::chrono::milliseconds accept_retry(100);

support::Descriptor any_descriptor() {
  return support::Descriptor(::open("/", O_PATH | O_CLOEXEC));
}

}  // namespace

SocketListener::SocketListener(UvLoop& loop, const SocketAddress& at, Sockets::Incoming incoming)
    : loop_(loop), address_(at), incoming_(std::move(incoming)), retry_(loop) {
  sockaddr_storage address = socket_address(at);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  open(raw, length, fmt::format("{} port {}", at.host, at.port));
  check_uv(::getsockname(socket_.get(), raw, &length) == 0 ? 0 : uv_translate_sys_error(errno), "getsockname");
  address_.port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                                      : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  watch();
}

SocketListener::SocketListener(UvLoop& loop, const std::string& local_name, Sockets::Incoming incoming)
    : loop_(loop), incoming_(std::move(incoming)), retry_(loop) {
  const LocalAddress address(local_name);
  local_ = true;
  if (address.is_path()) remove_abandoned(address);
  open(address.raw(), address.length(), fmt::format("the local name '{}'", local_name));
  if (address.is_path()) {
    path_ = local_name;
    static_cast<void>(::chmod(path_.c_str(), S_IRUSR | S_IWUSR));
  }
  watch();
}

// A socket that its listener has left behind takes its path for ever.
void SocketListener::remove_abandoned(const LocalAddress& address) {
  const support::Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), address.raw(), address.length()) == 0 || errno != ECONNREFUSED) return;
  ::unlink(reinterpret_cast<const sockaddr_un*>(address.raw())->sun_path);
}

SocketListener::~SocketListener() {
  if (!path_.empty() && owner_.is_this()) ::unlink(path_.c_str());
}

void SocketListener::open(const sockaddr* address, unsigned length, const std::string& where) {
  const auto check = [&](int result) {
    if (result >= 0) return;
    const int status = uv_translate_sys_error(errno);
    const std::string why = fmt::format("cannot listen on {}: {}", where, uv_message(status));
    if (status == UV_EADDRINUSE) throw PortTaken(ErrorCode::invalid_argument, why);
    throw Error(uv_error_code(status, ErrorCode::invalid_argument), why);
  };
  socket_.reset(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  check(socket_.get());
  const int on = 1;
  if (address->sa_family != AF_UNIX) check(::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  check(::bind(socket_.get(), address, length));
  check(::listen(socket_.get(), max_waiting));
}

void SocketListener::watch() {
  spare_ = any_descriptor();
  poll_ = make_handle<uv_poll_t>([&](auto* h) { return uv_poll_init(loop_.raw(), h, socket_.get()); }, "uv_poll_init");
  poll_->data = this;
  closed_on_fork_.emplace(socket_.get());
  start();
}

void SocketListener::start() {
  check_uv(uv_poll_start(poll_.get(), UV_READABLE,
                         [](uv_poll_t* poll, int, int) {
                           if (poll->data != nullptr) static_cast<SocketListener*>(poll->data)->accept_waiting();
                         }),
           "uv_poll_start");
}

void SocketListener::accept_waiting() {
  for (int i = 0; i < max_accepted_at_once; ++i) {
    support::Descriptor one(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (one && local_ && peer_user(one.get()) == PeerUser::other) continue;  // takes no place
    if (one) {
      incoming_([&](Stream::Events events) { return SocketStream::adopt(loop_, std::move(one), std::move(events)); });
    } else if (errno == EMFILE || errno == ENFILE) {
      return turn_away_waiting();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// Closed peers may retry. If another thread has taken the spare descriptor, the connections wait.
void SocketListener::turn_away_waiting() {
  spare_.reset();
  for (int i = 0; i < max_accepted_at_once; ++i) {
    if (!support::Descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC))) break;
  }
  spare_ = any_descriptor();
  if (spare_) return;
  uv_poll_stop(poll_.get());
  retry_.start(accept_retry, [this] {
    if (!spare_) spare_ = any_descriptor();
    start();
  });
}

}  // namespace shardwire
