// SPDX-License-Identifier: Apache-2.0
// Payload connections that are reset, while their source lives, cost what is under way over them.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "restore/source_rules.hpp"
#include "session/hang.hpp"
#include "support/deadline.hpp"
#include "support/descriptors.hpp"

BOOST_AUTO_TEST_SUITE(reset)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using restore::PathFailures;

namespace {

const std::optional<RestoreMethod> methods[] = {std::nullopt, RestoreMethod::zcopy, RestoreMethod::packed};
constexpr ByteCount more_than_control = 64 << 10;  // bytes that a control connection receives here

/// The first fields of the kernel's tcp_info. The C library's ends before the last, and <linux/tcp.h> excludes the library's header.
struct TcpFigures {
  std::array<std::byte, 128> before;
  std::uint64_t bytes_received;
};

/// The TCP connections that this process opens from now on.
class LaterConnections {
 public:
  LaterConnections() {
    each([this](int, ino_t number) { before_.insert(number); });
  }
  /// Resets those that exist now and have received so many bytes. Returns their number.
  int reset(ByteCount received) const {
    int count = 0;
    each([&](int socket, ino_t number) {
      TcpFigures state{};
      socklen_t length = sizeof(state);
      if (before_.contains(number) || ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &state, &length) != 0) return;
      if (state.bytes_received < received) return;
      const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
      if (::connect(socket, &nobody, sizeof(nobody)) == 0) ++count;
    });
    return count;
  }

 private:
  static void each(const std::function<void(int socket, ino_t number)>& visit) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const std::string name = entry.path().filename();
      int number = -1;
      std::from_chars(name.data(), name.data() + name.size(), number);
      // Its owner may close it meanwhile, and its number may then be that of another.
      const support::Descriptor own(::fcntl(number, F_DUPFD_CLOEXEC, 0));
      if (!own) continue;
      sockaddr_storage peer{};
      socklen_t length = sizeof(peer);
      if (::getpeername(own.get(), reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
      if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
      struct stat state {};
      if (::fstat(own.get(), &state) == 0) visit(own.get(), state.st_ino);
    }
  }

  std::set<ino_t> before_;
};

/// Member 0 reads what the others hold, all of them the same.
struct Job {
  explicit Job(int sources, const SessionOptions& options = quick()) {
    for (int i = 1; i <= sources; ++i) {
      holders.emplace_back(peer_arguments("replica " + std::to_string(i), port, sources + 1));
    }
    session.emplace(Session::join(member(0, sources + 1, port), options));
    for (const Child& holder : holders) read_frame(holder.socket());
    (void)session->inventory("state");  // connects to the first source: what is opened to it later is for payload
    connections.emplace();
  }

  std::uint16_t port = free_port();
  std::deque<Child> holders;
  std::optional<Session> session;
  std::optional<LaterConnections> connections;
  Tensor tensor;
};

/// Resets connections again and again, on a thread of its own.
class Resetting {
 public:
  explicit Resetting(const LaterConnections& connections)
      : thread_([&] {
          while (!ended_) count_ += connections.reset(0);
        }) {}
  ~Resetting() { end(); }
  Resetting(const Resetting&) = delete;
  Resetting& operator=(const Resetting&) = delete;

  void end() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] int count() const { return count_; }

 private:
  std::atomic<bool> ended_ = false;
  std::atomic<int> count_ = 0;
  std::thread thread_;
};

void require_complete(const Tensor& tensor, const RestoreReport& report) {
  BOOST_TEST(tensor.is_filled());
  BOOST_TEST(report.needed_bytes == tensor_bytes);
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
}

struct Outcome {
  int resets = 0;
  RestoreReport report;
};

// Resets all connections each time so many more bytes have arrived, `enough` times at most.
Outcome restore_with_resets(Job& job, RestoreOptions options, ByteCount every_bytes, int enough) {
  options.stop_at_values = true;  // until it is watched
  Outcome outcome;
  ByteCount next = every_bytes;
  Restore restore = job.session->restore(job.tensor.catalog(), options);
  restore.on_progress(
      [&](const Progress& progress) {
        if (outcome.resets == enough || progress.done_bytes < next || progress.done_bytes == progress.total_bytes) {
          return;
        }
        next = progress.done_bytes + every_bytes;
        if (job.connections->reset(more_than_control) > 0) ++outcome.resets;
      },
      1ms);
  restore.proceed();
  restore.wait();
  outcome.report = restore.report();
  require_complete(job.tensor, outcome.report);
  return outcome;
}

RestoreOptions slowly(std::optional<RestoreMethod> method) {
  RestoreOptions options = by(method, patience);
  options.ingress_bytes_per_second = 100 << 20;
  return options;
}

}  // namespace

BOOST_DATA_TEST_CASE(a_connection_that_is_reset_is_made_again_and_moves_only_what_was_under_way,
                     boost::unit_test::data::xrange(3) * boost::unit_test::data::make({1, 2}), which, sources) {
  const Deadline deadline(400s);
  const int many = PathFailures::max_in_a_row + 1;
  Job job(sources);
  const Outcome outcome = restore_with_resets(job, slowly(methods[which]), tensor_bytes / 64, many);
  BOOST_TEST(outcome.resets == many);
  BOOST_TEST(outcome.report.resent_bytes == 0U);  // messages that have arrived prove themselves
}

BOOST_AUTO_TEST_CASE(connections_may_be_reset_whatever_is_asked_of_replicas_and_digests) {
  const Deadline deadline(400s);
  for (const Replicas replicas : {Replicas::spread, Replicas::first, Replicas::compare}) {
    for (const Verify verify : {Verify::generation, Verify::digest}) {
      Job job(2);
      RestoreOptions options = slowly(std::nullopt);
      options.replicas = replicas;
      options.verify = verify;
      BOOST_TEST(restore_with_resets(job, options, tensor_bytes / 3, 2).resets > 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(connections_may_be_reset_for_a_while_as_soon_as_they_are_opened) {
  const Deadline deadline(400s);
  for (const auto method : methods) {
    Job job(1);
    Resetting resetting(*job.connections);
    Restore restore = job.session->restore(job.tensor.catalog(), by(method, patience));
    while (resetting.count() < 4) std::this_thread::yield();
    resetting.end();
    restore.wait();
    require_complete(job.tensor, restore.report());
    job.session->restore(job.tensor.catalog(), by(method, patience)).wait();
  }
}

BOOST_AUTO_TEST_CASE(a_source_whose_connections_are_all_reset_for_good_ends_the_restore_naming_it_and_the_fabric) {
  const Deadline deadline(400s);
  Job job(1);
  RestoreOptions options = by(RestoreMethod::zcopy, patience);
  options.ingress_bytes_per_second = 1 << 20;  // would take a minute
  Resetting resetting(*job.connections);
  Restore restore = job.session->restore(job.tensor.catalog(), options);
  const Error error = failure_of([&] { restore.wait(); });
  resetting.end();
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}), error.what());
  BOOST_TEST(says(error, "source rank 0"), error.what());
  BOOST_TEST(says(error, "tcp: it failed 8 times in a row"), error.what());
  BOOST_TEST(!error.gaps().empty());
  // The session is as good as before.
  job.session->restore(job.tensor.catalog(), by(RestoreMethod::zcopy, patience)).wait();
  BOOST_TEST(job.tensor.is_filled());
}

BOOST_AUTO_TEST_SUITE_END()
