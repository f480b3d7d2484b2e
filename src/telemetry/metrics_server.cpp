// SPDX-License-Identifier: Apache-2.0
#include "telemetry/metrics_server.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "support/descriptors.hpp"
#include "support/fork.hpp"
#include "support/own_thread.hpp"
#include "support/system_error.hpp"
#include "support/wake_event.hpp"
#include "telemetry/metrics_union.hpp"

namespace shardwire::telemetry {

namespace {

using Steady = std::chrono::steady_clock;

constexpr std::chrono::seconds max_silence(60);  // a member that lives writes its file more often
constexpr std::size_t max_request_bytes = 8192;
constexpr std::size_t max_clients = 16;

std::string response(std::string_view status, std::string_view body, std::string_view more = "") {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: "
      "close\r\n{}\r\n{}",
      status, body.size(), more, body);
}

/// A descriptor that the threads of this process alone have: it goes with them, not with a child that inherits it.
class Own {
 public:
  explicit Own(support::Descriptor descriptor)
      : descriptor_(std::move(descriptor)), closed_on_fork_(descriptor_.get()) {}
  [[nodiscard]] int get() const { return descriptor_.get(); }

 private:
  support::Descriptor descriptor_;
  support::ClosedOnFork closed_on_fork_;
};

/// A connection with one request and its answer.
class Client {
 public:
  Client(support::Descriptor socket, Steady::time_point until) : socket_(std::move(socket)), until_(until) {}

  [[nodiscard]] pollfd waits_for() const {
    return {socket_.get(), static_cast<short>(answer_.empty() ? POLLIN : POLLOUT), 0};
  }
  [[nodiscard]] bool is_late() const { return Steady::now() >= until_; }
  /// Whether more is to come. `answer_to`: makes the answer to a request.
  template <typename AnswerTo>
  bool goes_on(AnswerTo answer_to) {
    if (answer_.empty()) {
      if (!receive()) return false;
      if (request_.find("\r\n\r\n") == std::string::npos) return request_.size() <= max_request_bytes;
      answer_ = answer_to(request_);
    }
    return send();
  }

 private:
  bool receive() {
    std::array<char, 2048> buffer;
    const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size > 0) request_.append(buffer.data(), static_cast<std::size_t>(size));
    return size > 0 || (size < 0 && would_block());
  }
  bool send() {
    const ssize_t size =
        ::send(socket_.get(), answer_.data() + sent_, answer_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0) return would_block();
    sent_ += static_cast<std::size_t>(size);
    if (sent_ < answer_.size()) return true;
    ::shutdown(socket_.get(), SHUT_WR);  // a child of fork() may have the socket too
    return false;
  }
  static bool would_block() { return errno == EAGAIN || errno == EINTR; }

  support::Descriptor socket_;
  Steady::time_point until_;
  std::string request_;  // what has arrived
  std::string answer_;   // empty: the request is not whole
  std::size_t sent_ = 0;
};

/// Errors: throws std::system_error, std::runtime_error.
support::Descriptor listen_on(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) throw std::runtime_error(::gai_strerror(status));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  support::Descriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) support::throw_errno("socket");
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0) support::throw_errno("bind");
  if (::listen(socket.get(), static_cast<int>(max_clients)) != 0) support::throw_errno("listen");
  return socket;
}

/// The work of the thread: the port, its connections and the lock of the folder.
class Port {
 public:
  Port(const MetricsServer::Setup& setup, MetricsServer::Notice notice) : setup_(setup), notice_(std::move(notice)) {}

  /// Returns once `ending` is readable.
  void serve_until(int ending) {
    while (true) {
      if (!listener_) listen();
      std::vector<pollfd> waits{{ending, POLLIN, 0}, {listener_ && !full_ ? listener_->get() : -1, POLLIN, 0}};
      for (const Client& client : clients_) waits.push_back(client.waits_for());
      full_ = false;
      ::poll(waits.data(), waits.size(), static_cast<int>(setup_.interval.count()));
      if (waits[0].revents != 0) return;
      serve({waits.begin() + 2, waits.end()});
      if (waits[1].revents != 0) accept();
    }
  }

 private:
  // The lock of the folder tells a port that this job has from one that another program has.
  void listen() {
    try {
      if (!locked_ && !lock()) return;
      listener_.emplace(listen_on(setup_.host, setup_.port));
      refused_ = false;
      notice_(LogLevel::info, fmt::format("metrics of this host are served at {} port {}", setup_.host, setup_.port));
    } catch (const std::exception& error) {
      if (std::exchange(refused_, true)) return;
      notice_(LogLevel::warning,
              fmt::format("metrics are not served at {} port {}: {}", setup_.host, setup_.port, error.what()));
    }
  }
  bool lock() {
    support::Descriptor folder(::open(setup_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) support::throw_errno("the folder cannot be opened");
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return false;
      support::throw_errno("the folder cannot be locked");
    }
    locked_.emplace(std::move(folder));
    return true;
  }

  void accept() {
    support::Descriptor socket(::accept4(listener_->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      full_ = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
      return;
    }
    if (clients_.size() == max_clients) clients_.erase(clients_.begin());
    clients_.emplace_back(std::move(socket), Steady::now() + setup_.patience);
  }

  void serve(const std::vector<pollfd>& ready) {
    std::vector<Client> left;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      const bool stays =
          ready[i].revents == 0 || clients_[i].goes_on([this](std::string_view request) { return answer_to(request); });
      if (stays && !clients_[i].is_late()) left.push_back(std::move(clients_[i]));
    }
    clients_ = std::move(left);
  }

  std::string answer_to(std::string_view request) {
    if (!request.starts_with("GET ")) return response("405 Method Not Allowed", "GET alone\n", "Allow: GET\r\n");
    request.remove_prefix(4);
    if (request.substr(0, request.find_first_of(" ?\r")) != "/metrics") {
      return response("404 Not Found", "metrics are at /metrics\n");
    }
    try {
      return response("200 OK", text());
    } catch (const std::exception& error) {
      return response("503 Service Unavailable", fmt::format("{}\n", error.what()));
    }
  }

  const std::string& text() {
    if (const auto now = Steady::now(); !read_at_ || now - *read_at_ >= setup_.interval) {
      text_ = metrics_union(setup_.folder, max_silence);
      read_at_ = now;
    }
    return text_;
  }

  const MetricsServer::Setup& setup_;
  const MetricsServer::Notice notice_;
  std::optional<Own> locked_;    // the folder
  std::optional<Own> listener_;  // ends before the lock does
  bool refused_ = false;         // has been told
  bool full_ = false;            // no connection can be accepted, as without descriptors or memory: they wait
  std::vector<Client> clients_;  // the oldest first
  std::string text_;
  std::optional<Steady::time_point> read_at_;  // of text_
};

}  // namespace

/// State of the thread, which may outlive its MetricsServer.
class MetricsServer::Server {
 public:
  Server(Setup setup, Notice notice) : setup_(std::move(setup)), notice_(std::move(notice)) {}

  /// On the thread, until end().
  void run() {
    try {
      Port(setup_, [this](LogLevel level, const std::string& text) {
        tell(level, text);
      }).serve_until(ending_.descriptor());
    } catch (const std::exception& error) {  // out of memory
      tell(LogLevel::warning, fmt::format("metrics are no longer served: {}", error.what()));
    }
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  /// Returns whether run() has ended; if not, it gives no notice any more.
  bool end() {
    ending_.signal();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, setup_.patience, [this] { return done_; });
    notice_ = nullptr;
    return done_;
  }

 private:
  void tell(LogLevel level, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (notice_) notice_(level, text);
  }

  const Setup setup_;
  const support::WakeEvent ending_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Notice notice_;  // guarded by mutex_, as the next; null: the MetricsServer has ended
  bool done_ = false;
};

MetricsServer::MetricsServer(Setup setup, Notice notice)
    : server_(std::make_shared<Server>(std::move(setup), std::move(notice))) {
  thread_ = std::thread([server = server_] {
    support::begin_own_thread("shardwire http");
    server->run();
  });
}

MetricsServer::~MetricsServer() {
  server_->end() ? thread_.join() : thread_.detach();
}

}  // namespace shardwire::telemetry
