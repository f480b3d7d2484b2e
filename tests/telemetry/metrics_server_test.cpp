// SPDX-License-Identifier: Apache-2.0
// The port of a host that Prometheus reads.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/deadline.hpp"
#include "support/descriptors.hpp"
#include "support/fake_root.hpp"
#include "support/http.hpp"
#include "support/job.hpp"
#include "support/sanitizer.hpp"
#include "telemetry/metrics_server.hpp"

BOOST_AUTO_TEST_SUITE(metrics_server)

using namespace shardwire;
using namespace shardwire::telemetry;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr auto long_enough = 120s;

std::string series_of(int member) {
  return "shardwire_restore_active{shardwire_member=\"" + std::to_string(member) + "\"} 1\n";
}

const std::string description = "# HELP shardwire_restore_active Running ones\n# TYPE shardwire_restore_active gauge\n";

/// The files of members, and the port that serves them.
struct Host {
  FakeRoot root;
  const std::uint16_t port = free_port();

  void write(int member, std::chrono::seconds age = 0s) const {
    const std::string name = "shardwire-night-" + std::to_string(member) + ".prom";
    root.write("/" + name, description + series_of(member));
    std::filesystem::last_write_time(root.path / name, std::filesystem::file_time_type::clock::now() - age);
  }
};

/// A member that serves, or waits to.
class Served {
 public:
  explicit Served(const Host& host, std::chrono::milliseconds patience = 1h, const std::string& address = "127.0.0.1")
      : server_({.folder = host.root.path.string(),
                 .host = address,
                 .port = host.port,
                 .interval = 1ms,
                 .patience = patience},
                [this](LogLevel level, const std::string& text) {
                  const std::lock_guard lock(mutex_);
                  notices_.push_back((level == LogLevel::info ? "info: " : "warning: ") + text);
                }) {}

  [[nodiscard]] std::vector<std::string> notices() const {
    const std::lock_guard lock(mutex_);
    return notices_;
  }
  std::vector<std::string> await_notices(std::size_t count) const {
    BOOST_REQUIRE(run_until([] {}, [&] { return notices().size() >= count; }, long_enough));
    return notices();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> notices_;
  MetricsServer server_;
};

std::string serves(const Host& host) {
  return "info: metrics of this host are served at 127.0.0.1 port " + std::to_string(host.port);
}

std::string scrape(const Host& host) {
  return body_of(http_answer(host.port, "GET /metrics HTTP/1.1"));
}

boost::test_tools::assertion_result can_fork(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!with_thread_sanitizer);
  result.message() << "the thread sanitizer does not go on after fork()";
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_answer_has_the_series_of_all_members_that_live) {
  const Host host;
  host.write(0);
  host.write(1, 30s);
  host.write(2, 2min);  // has died
  const Served served(host);
  BOOST_TEST(served.await_notices(1) == std::vector{serves(host)}, boost::test_tools::per_element());
  const std::string all = description + series_of(0) + series_of(1);
  const std::string whole = http_answer(host.port, "GET /metrics HTTP/1.1");
  BOOST_TEST(whole == "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
                          std::to_string(all.size()) + "\r\nConnection: close\r\n\r\n" + all);
  host.write(3);
  const std::string later = all + series_of(3);
  BOOST_TEST(run_until([] {}, [&] { return body_of(http_answer(host.port, "GET /metrics?of=all HTTP/1.1")) == later; },
                       long_enough));
}

BOOST_AUTO_TEST_CASE(an_answer_of_many_bytes_is_whole) {
  const Host host;
  std::string all = description;
  for (int member = 0; member < 100'000; ++member) all += series_of(member);
  host.root.write("/shardwire-night-0.prom", all);
  const Served served(host);
  served.await_notices(1);
  BOOST_TEST((scrape(host) == all));
}

BOOST_AUTO_TEST_CASE(other_requests_are_refused) {
  const Host host;
  host.write(0);
  const Served served(host);
  served.await_notices(1);
  BOOST_TEST(http_answer(host.port, "GET / HTTP/1.1").starts_with("HTTP/1.1 404 "));
  BOOST_TEST(http_answer(host.port, "GET /metrics/more HTTP/1.1").starts_with("HTTP/1.1 404 "));
  const std::string posted = http_answer(host.port, "POST /metrics HTTP/1.1");
  BOOST_TEST(posted.starts_with("HTTP/1.1 405 "));
  BOOST_TEST(posted.find("\r\nAllow: GET\r\n") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_folder_that_has_gone_is_an_error_of_the_scrape) {
  const Host host;
  const Served served(host);
  served.await_notices(1);
  std::filesystem::remove(host.root.path);
  BOOST_TEST(http_answer(host.port, "GET /metrics HTTP/1.1").starts_with("HTTP/1.1 503 "));
}

// As the folder of a file server that does not answer. A pipe is read until its other end is closed.
BOOST_AUTO_TEST_CASE(the_end_does_not_wait_for_a_folder_that_hangs) {
  const Deadline deadline(long_enough);
  const Host host;
  const std::string path = (host.root.path / "shardwire-night-0.prom").string();
  BOOST_REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  support::Descriptor pipe;
  {
    const Served served(host, 1ms);
    served.await_notices(1);
    // One at a time: connections that wait to be accepted would at some number make the next one wait for the server, which waits.
    support::Descriptor asked;
    const auto ask = [&] {
      char byte = 0;
      if (asked && ::recv(asked.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) return;
      asked = connection_to(host.port);
      send_text(asked, "GET /metrics HTTP/1.1\r\n\r\n");
    };
    const auto is_read = [&] {
      pipe = support::Descriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      return static_cast<bool>(pipe);
    };
    BOOST_REQUIRE(run_until(ask, is_read, long_enough));
  }
  std::filesystem::remove(path);  // so that nobody reads another one
  pipe.reset();
  const auto is_over = [&] {
    try {
      connection_to(host.port);
      return false;
    } catch (const std::runtime_error&) {
      return true;
    }
  };
  BOOST_TEST(run_until([] {}, is_over, long_enough));
}

BOOST_AUTO_TEST_CASE(a_client_that_is_slow_is_cut_off) {
  const Host host;
  const Served served(host, 1ms);
  served.await_notices(1);
  const auto slow = connection_to(host.port);
  send_text(slow, "GET /metrics HTTP/1.1\r\n");
  BOOST_TEST(rest_of(slow).empty());
}

BOOST_AUTO_TEST_CASE(a_request_without_end_is_cut_off) {
  const Host host;
  const Served served(host);
  served.await_notices(1);
  const auto long_one = connection_to(host.port);
  send_text(long_one, "GET /metrics HTTP/1.1\r\nMore: " + std::string(9000, 'x'));
  BOOST_TEST(rest_of(long_one).empty());
}

BOOST_AUTO_TEST_CASE(silent_clients_leave_room_for_a_scrape) {
  const Host host;
  host.write(0);
  const Served served(host);
  served.await_notices(1);
  std::vector<support::Descriptor> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connection_to(host.port));
  BOOST_TEST(scrape(host) == description + series_of(0));
}

BOOST_AUTO_TEST_CASE(when_the_one_that_serves_ends_another_does) {
  const Host host;
  host.write(0);
  auto first = std::make_unique<Served>(host);
  first->await_notices(1);
  const Served second(host);
  BOOST_TEST(scrape(host) == description + series_of(0));
  BOOST_TEST(second.notices().empty());
  first.reset();
  BOOST_TEST(second.await_notices(1) == std::vector{serves(host)}, boost::test_tools::per_element());
  BOOST_TEST(scrape(host) == description + series_of(0));
}

BOOST_AUTO_TEST_CASE(a_port_that_another_program_has_is_reported_once) {
  const Host host;
  support::Descriptor other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback_address(host.port);
  BOOST_REQUIRE(::bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  BOOST_REQUIRE(::listen(other.get(), 1) == 0);
  const Served served(host);
  served.await_notices(1);
  other.reset();
  const std::vector<std::string> both{"warning: metrics are not served at 127.0.0.1 port " + std::to_string(host.port) +
                                          ": bind: Address already in use",
                                      serves(host)};
  BOOST_TEST(served.await_notices(2) == both, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_name_is_no_address) {
  const Host host;
  const Served served(host, 1h, "here");
  const std::string text = served.await_notices(1).front();
  BOOST_TEST(text.starts_with("warning: metrics are not served at here port "), text);
}

BOOST_AUTO_TEST_CASE(a_child_of_fork_holds_neither_the_port_nor_the_folder, *boost::unit_test::precondition(can_fork)) {
  const Host host;
  auto first = std::make_unique<Served>(host);
  first->await_notices(1);
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(static_cast<unsigned>(2 * long_enough.count()));
    while (true) ::pause();
  }
  first.reset();
  const Served second(host);
  BOOST_TEST(second.await_notices(1) == std::vector{serves(host)}, boost::test_tools::per_element());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

BOOST_AUTO_TEST_SUITE_END()
