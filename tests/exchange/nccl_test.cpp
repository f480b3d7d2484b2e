// SPDX-License-Identifier: Apache-2.0
// Exchanges of device memory in NCCL rounds, over fakes of NCCL and devices (support/fake_nccl_devices.hpp). Members
// are threads.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "support/deadline.hpp"
#include "support/fake_nccl_devices.hpp"
#include "support/forked.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(exchange_nccl)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

using transport::nccl::Communicator;

constexpr int member_count = 2;

/// Members of a job, one device each: tensors split along one dim are restored split along the other.
class Ring {
 public:
  explicit Ring(const FakeNcclFaults& faults = {}, const std::string& transport = "auto")
      : devices(faults), transport_(transport) {}

  UsedNccl devices;
  ExchangeOptions options{.timeout = 20s, .staging_bytes = 64 << 10, .verify = Verify::digest};
  std::array<std::optional<Duration>, member_count> deadlines{};  // of members with a deadline of their own
  std::array<std::optional<ByteCount>, member_count> budgets{};   // of members with a budget of their own
  std::array<void*, member_count> communicators{};
  bool host_tensor = false;  // in addition to the tensor on the device
  Extents shape{128, 96};
  Layout target = Layout::chunk(1, member_count);
  bool one_on_host = false;  // member 1 has no device memory
  bool only_0_wants = false;
  std::atomic<int> planned_again = 0;
  std::function<void(int rank, Session&)> while_exchanging;  // on a separate thread
  std::array<std::optional<ExchangeResult>, member_count> results;
  std::array<std::optional<Error>, member_count> errors;

  /// Joins, and exchanges `times` times.
  void run(int times = 1) {
    const auto port = free_port();
    on_members(member_count, [&](int rank) {
      SessionOptions session_options = quick();
      session_options.transport = transport_;
      session_options.log = [&](LogLevel, std::string_view text) {
        if (text.find("the plan of an earlier one holds") != std::string_view::npos) ++planned_again;
      };
      Session session = Session::join(member(rank, member_count, port), session_options);
      Tensor device(*this, "w", rank, one_on_host && rank == 1 ? memory::on_host : rank);
      std::optional<Tensor> host;
      if (host_tensor) host.emplace(*this, "h", rank, memory::on_host);
      {
        std::jthread beside;
        if (while_exchanging) beside = std::jthread([&] { while_exchanging(rank, session); });
        for (int i = 0; i < times; ++i) exchange(session, rank, device, host, static_cast<std::uint64_t>(i + 1));
      }
      if (!while_exchanging) session.gather("end", {}, patience);
    });
  }
  [[nodiscard]] const RestoreReport& report(int rank) const { return results[static_cast<std::size_t>(rank)]->report; }
  [[nodiscard]] const Error& error(int rank) const { return *errors[static_cast<std::size_t>(rank)]; }

 private:
  /// One member's shards on both sides.
  struct Tensor {
    Tensor(Ring& of, const std::string& name, int rank, int on)
        : ring(of),
          place(on),
          wants(rank == 0 || !of.only_0_wants),
          spec{{name, "exp_avg"}, DType::f32, ring.shape},
          held(spec, Layout::chunk(0, member_count), Rank{rank}),
          wanted(spec, ring.target, Rank{rank}) {
      if (place == memory::on_host) return;
      held_at = ring.devices->take(place, held.size_bytes());
      wanted_at = ring.devices->take(place, wanted.size_bytes());
    }
    void fill(std::uint64_t seed) {
      held.fill(seed);
      if (place != memory::on_host) ring.devices->write(held_at, std::span(held.data(), held.size_bytes()));
    }
    std::size_t wrong(std::uint64_t seed) {
      if (!wants) return 0;
      if (place != memory::on_host) {
        const auto bytes = ring.devices->read(wanted_at, wanted.size_bytes());
        std::copy(bytes.begin(), bytes.end(), wanted.data());
      }
      return wanted.wrong(seed);
    }
    void add_to(Catalog& has, Catalog& wanting) {
      has.add(spec, Layout::chunk(0, member_count),
              {.data = held_at == nullptr ? held.data() : held_at, .device = place});
      if (!wants) return;
      wanting.add(spec, ring.target, {.data = wanted_at == nullptr ? wanted.data() : wanted_at, .device = place});
    }

    Ring& ring;
    int place;
    bool wants;
    TensorSpec spec;
    TestShard held;
    TestShard wanted;
    std::byte* held_at = nullptr;
    std::byte* wanted_at = nullptr;
  };

  void exchange(Session& session, int rank, Tensor& device, std::optional<Tensor>& host, std::uint64_t seed) {
    Catalog held(Rank{rank}, member_count);
    Catalog wanted(Rank{rank}, member_count);
    device.fill(seed);
    device.add_to(held, wanted);
    if (host) host->fill(seed + 50);
    if (host) host->add_to(held, wanted);
    ExchangeOptions own = options;
    const auto index = static_cast<std::size_t>(rank);
    own.communicator = communicators[index];
    own.timeout = deadlines[index].value_or(own.timeout);
    own.staging_bytes = budgets[index].value_or(own.staging_bytes);
    try {
      results[index] = session.exchange(held, wanted, own);
      require(device.wrong(seed) == 0, "what was on the other member's device");
      require(!host || host->wrong(seed + 50) == 0, "what was in the other member's host memory");
    } catch (const Error& error) {
      errors[index] = error;
    }
  }

  std::string transport_;
};

bool in_rounds(const Ring& ring, int rank) {
  const auto& peers = ring.report(rank).peers;
  return std::ranges::any_of(peers, [](const PeerReport& row) { return row.path == "nccl/collective"; });
}

/// A ring whose members were aborted in their rounds. `limit` gives it a time that must suffice to come to them, so a busy machine
/// runs it again with more.
std::unique_ptr<Ring> aborted_ring(const FakeNcclFaults& faults, const std::function<void(Ring&, Duration)>& limit) {
  for (Duration time = 1s;; time *= 3) {
    auto ring = std::make_unique<Ring>(faults);
    limit(*ring, time);
    const auto began = std::chrono::steady_clock::now();
    ring->run();
    BOOST_TEST((std::chrono::steady_clock::now() - began < time + promptly));
    if (FakeNccl::instance().aborts() == member_count || time > patience / 10) return ring;
  }
}

void require_no_errors(const Ring& ring) {
  for (const auto& error : ring.errors) BOOST_TEST(!error, (error ? error->what() : ""));
  BOOST_REQUIRE((ring.results[0] && ring.results[1]));
}

}  // namespace

// Two processes, each with its own fakes: rounds begin and never end. Member 0 holds a tensor that member 1 wants.
Error error_of_process(int rank, std::uint16_t port, const std::function<void()>& in_rounds) {
  UsedNccl devices;
  SessionOptions session_options = quick();
  session_options.transport = "tcp";
  Session session = Session::join(member(rank, member_count, port), session_options);
  const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {100}};
  const View view{.data = devices->take(rank, 400), .device = rank};
  Catalog held(Rank{0}, 1);
  Catalog wanted(Rank{0}, 1);
  (rank == 0 ? held : wanted).add(spec, Layout::replicated(), view);
  std::jthread watcher([&] {
    if (run_until([] { std::this_thread::sleep_for(1ms); }, [] { return FakeNccl::instance().asked() > 0; }, 40s))
      in_rounds();
  });
  return failure_of([&] { session.exchange(held, wanted, {.timeout = 40s, .method = ExchangeMethod::collective}); });
}

// The same, with device memory that the other process maps. Member 0 holds the tensor.
RestoreReport report_of_process(int rank, std::uint16_t port) {
  UsedNccl devices;
  devices->share(FakeDevices::Sharing::handle);
  SessionOptions session_options = quick();
  session_options.transport = "auto";
  Session session = Session::join(member(rank, member_count, port), session_options);
  const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {100}};
  TestShard content(spec, Layout::replicated(), Rank{0});
  std::byte* const at = devices->take(rank, content.size_bytes());
  content.fill(7);
  if (rank == 0) devices->write(at, std::span(content.data(), content.size_bytes()));
  Catalog held(Rank{0}, 1);
  Catalog wanted(Rank{0}, 1);
  (rank == 0 ? held : wanted).add(spec, Layout::replicated(), View{.data = at, .device = rank});
  RestoreReport report = session.exchange(held, wanted, {.timeout = 20s, .verify = Verify::digest}).report;
  const auto found = devices->read(at, content.size_bytes());
  require(std::equal(found.begin(), found.end(), content.data()), "what member 0 holds is there");
  require(FakeNccl::instance().made() == 0, "no group was made");
  session.gather("end", {}, patience);
  return report;
}

// This case and the next run first: they fork, and the process must have no threads yet.
BOOST_AUTO_TEST_CASE(device_memory_that_is_mapped_goes_in_no_rounds) {
  const Deadline deadline(120s);
  const auto port = free_port();
  Forked source([&](int) { report_of_process(0, port); });
  const RestoreReport report = report_of_process(1, port);
  BOOST_TEST(report.rounds == 0U);
  BOOST_TEST(std::ranges::any_of(report.peers, [](const PeerReport& row) { return row.path == "shm/mapped"; }));
  BOOST_TEST(source.reap() == 0);
}

BOOST_AUTO_TEST_CASE(a_process_that_is_killed_in_the_middle_of_rounds_ends_those_of_the_others) {
  const Deadline deadline(120s);
  const auto port = free_port();
  Forked peer([&](int) { error_of_process(1, port, [] {}); });
  const Error error = error_of_process(0, port, [&] { peer.kill(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST(says(error, "member 1 is gone in the middle of the rounds"), error.what());
}

BOOST_AUTO_TEST_CASE(device_memory_without_a_direct_path_goes_in_rounds_unasked) {
  const Deadline deadline(120s);
  Ring ring;
  ring.run();
  require_no_errors(ring);
  for (const int rank : {0, 1}) {
    BOOST_TEST(in_rounds(ring, rank));
    BOOST_TEST(ring.report(rank).rounds > 0U);
    BOOST_TEST(ring.report(rank).rounds_bytes == 128U * 96 / 4 * sizeof(float));
    BOOST_TEST(ring.report(rank).rounds_seconds > 0);
    BOOST_TEST(ring.report(rank).staging_peak_bytes <= ring.options.staging_bytes);
  }
  BOOST_TEST(FakeNccl::instance().early() == 0);
}

BOOST_AUTO_TEST_CASE(long_runs_go_from_where_they_lie_to_where_they_belong) {
  const Deadline deadline(120s);
  Ring ring;
  ring.shape = {member_count, (9 << 20) / 4};
  ring.target = Layout::replicated();
  ring.run();
  require_no_errors(ring);
  BOOST_TEST(ring.report(0).rounds == 1U);
  BOOST_TEST(ring.report(0).rounds_bytes == 9U << 20);
  BOOST_TEST(ring.report(0).staging_peak_bytes == 0U);
}

BOOST_AUTO_TEST_CASE(who_names_transports_gets_rounds_when_they_are_asked_for) {
  const Deadline deadline(120s);
  for (const bool asked : {false, true}) {
    Ring ring({}, "tcp");
    if (asked) ring.options.method = ExchangeMethod::collective;
    ring.run();
    require_no_errors(ring);
    BOOST_TEST(in_rounds(ring, 0) == asked);
    BOOST_TEST((ring.report(0).rounds > 0) == asked);
    BOOST_TEST(FakeNccl::instance().made() == (asked ? 2 : 0));
  }
}

BOOST_AUTO_TEST_CASE(rounds_keep_to_the_smallest_budget_of_all) {
  const Deadline deadline(120s);
  Ring ring;
  ring.options.verify = Verify::generation;
  ring.budgets[1] = 32 << 10;  // rounds get a quarter of it
  ring.run();
  require_no_errors(ring);
  for (const int rank : {0, 1}) {
    BOOST_TEST(ring.report(rank).rounds == 3U);  // 12 KiB each way
    BOOST_TEST(ring.report(rank).staging_peak_bytes == 8U << 10);
  }
}

// shm lacks messages.
BOOST_AUTO_TEST_CASE(forced_rounds_need_no_other_path) {
  const Deadline deadline(120s);
  Ring ring({}, "shm");
  ring.options.method = ExchangeMethod::collective;
  ring.run();
  require_no_errors(ring);
  for (const int rank : {0, 1}) BOOST_TEST(in_rounds(ring, rank));
}

BOOST_AUTO_TEST_CASE(exchanges_are_planned_once_whether_they_come_to_rounds_or_not) {
  const Deadline deadline(120s);
  for (const bool crosses : {false, true}) {
    Ring ring;
    if (!crosses) ring.target = Layout::chunk(0, member_count);
    ring.run(3);
    require_no_errors(ring);
    BOOST_TEST(in_rounds(ring, 0) == crosses);
    BOOST_TEST(ring.planned_again == 2 * member_count);
    BOOST_TEST(FakeNccl::instance().made() == (crosses ? 2 : 0));
  }
}

BOOST_AUTO_TEST_CASE(a_group_is_made_once_for_several_exchanges) {
  const Deadline deadline(120s);
  Ring ring;
  ring.run(3);
  require_no_errors(ring);
  BOOST_TEST(in_rounds(ring, 0));
  BOOST_TEST(FakeNccl::instance().made() == 2);
  BOOST_TEST(FakeNccl::instance().destroyed() == 2);
  BOOST_TEST(FakeNccl::instance().aborts() == 0);
}

BOOST_AUTO_TEST_CASE(host_memory_goes_beside_the_rounds_or_is_refused_by_name_where_they_are_forced) {
  const Deadline deadline(120s);
  {
    Ring ring;
    ring.host_tensor = true;
    ring.run();
    require_no_errors(ring);
    BOOST_TEST(in_rounds(ring, 0));
    BOOST_TEST(ring.report(0).peers.size() > 2U);  // this rank, and two paths to the other
    BOOST_TEST(ring.report(0).rounds_bytes == 128U * 96 / 4 * sizeof(float));
  }
  Ring ring;
  ring.host_tensor = true;
  ring.options.method = ExchangeMethod::collective;
  ring.run();
  for (const int rank : {0, 1}) {
    BOOST_TEST((ring.error(rank).code() == ErrorCode::unsupported), ring.error(rank).what());
    BOOST_TEST(says(ring.error(rank), "h:exp_avg"), ring.error(rank).what());
    BOOST_TEST(says(ring.error(rank), "from host memory there to host memory here"), ring.error(rank).what());
  }
}

BOOST_AUTO_TEST_CASE(between_a_device_and_the_host_there_are_no_rounds) {
  const Deadline deadline(120s);
  {
    Ring ring;
    ring.one_on_host = true;
    ring.run();
    require_no_errors(ring);
    BOOST_TEST(ring.report(0).rounds == 0U);
  }
  Ring ring;
  ring.one_on_host = true;
  ring.options.method = ExchangeMethod::collective;
  ring.run();
  for (const int rank : {0, 1}) {
    BOOST_TEST((ring.error(rank).code() == ErrorCode::unsupported), ring.error(rank).what());
    BOOST_TEST(says(ring.error(rank), "w:exp_avg"), ring.error(rank).what());
    BOOST_TEST(says(ring.error(rank), "between members with device memory"), ring.error(rank).what());
  }
}

BOOST_AUTO_TEST_CASE(a_communicator_of_the_caller_is_used_and_left_alone) {
  const Deadline deadline(120s);
  Ring ring;
  const auto make_all = [&](bool swapped) {
    const Bytes id = make_fake_nccl_id();
    transport::nccl::UniqueId unique;
    std::memcpy(unique.bytes.data(), id.data(), id.size());
    for (int device = 0; device < member_count; ++device) {
      transport::nccl::Config config;
      config.blocking = 0;
      Communicator* made = nullptr;
      const int rank = swapped ? member_count - 1 - device : device;
      FakeNccl::with_device(device, [&] { FakeNccl::api().init(&made, member_count, unique, rank, &config); });
      ring.communicators[static_cast<std::size_t>(device)] = made;
    }
  };
  make_all(false);
  ring.run(2);
  require_no_errors(ring);
  BOOST_TEST(in_rounds(ring, 1));
  BOOST_TEST(FakeNccl::instance().made() == 2);
  BOOST_TEST(FakeNccl::instance().destroyed() + FakeNccl::instance().aborts() == 0);
  // Only one member passes a communicator.
  ring.communicators[1] = nullptr;
  ring.run();
  for (const int rank : {0, 1}) {
    BOOST_TEST((ring.error(rank).code() == ErrorCode::invalid_argument), ring.error(rank).what());
    BOOST_TEST(says(ring.error(rank), "a communicator is given by some"), ring.error(rank).what());
  }
  // Communicators with other members.
  make_all(true);
  ring.run();
  for (const int rank : {0, 1}) {
    BOOST_TEST((ring.error(rank).code() == ErrorCode::invalid_argument), ring.error(rank).what());
    BOOST_TEST(says(ring.error(rank), "ncclCommUserRank says"), ring.error(rank).what());
  }
  BOOST_TEST(FakeNccl::instance().destroyed() + FakeNccl::instance().aborts() == 0);
}

// A member is killed or hangs after all agreed on rounds: NCCL does not notify the others.
BOOST_AUTO_TEST_CASE(a_member_that_never_comes_to_the_rounds_ends_all_by_the_deadline) {
  const Deadline deadline(120s);
  for (const FakeNcclFaults& faults : {FakeNcclFaults{.absent_rank = 1}, FakeNcclFaults{.rounds_hang = true}}) {
    const auto ring = aborted_ring(faults, [](Ring& one, Duration time) { one.options.timeout = time; });
    for (const int rank : {0, 1}) {
      BOOST_TEST((ring->error(rank).code() == ErrorCode::timed_out), ring->error(rank).what());
    }
    BOOST_TEST(FakeNccl::instance().aborts() == 2);
  }
}

// Member 0 serves the rendezvous, so no process can notify the other member.
BOOST_AUTO_TEST_CASE(a_session_that_is_closed_in_the_middle_of_rounds_ends_them_for_all) {
  const Deadline deadline(120s);
  const auto began = std::chrono::steady_clock::now();
  Ring ring({.rounds_hang = true});
  ring.only_0_wants = true;
  ring.while_exchanging = [](int rank, Session& session) {
    const auto in_rounds = [] { return FakeNccl::instance().asked() == member_count; };
    if (rank == 0 && run_until([] { std::this_thread::sleep_for(1ms); }, in_rounds, promptly)) session.close(500ms);
  };
  ring.run();
  BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));
  BOOST_TEST((ring.error(0).code() == ErrorCode::invalid_argument), ring.error(0).what());
  BOOST_TEST(says(ring.error(0), "the session is closed"), ring.error(0).what());
  BOOST_TEST((ring.error(1).code() == ErrorCode::peer_lost), ring.error(1).what());
  BOOST_TEST(
      (says(ring.error(1), "member 0 is gone") || says(ring.error(1), "member 0, which serves the rendezvous, left")),
      ring.error(1).what());
  BOOST_TEST(FakeNccl::instance().aborts() == 2);
}

BOOST_AUTO_TEST_CASE(a_session_is_closed_in_time_while_its_exchange_waits_for_the_caller) {
  const Deadline deadline(120s);
  UsedNccl devices;
  void* const never = devices->make_event();
  Session session = Session::join(member(0, 1, free_port()), quick());
  Catalog held(Rank{0}, 1);
  Catalog wanted(Rank{0}, 1);
  wanted.add({{"w", "exp_avg"}, DType::f32, {100}}, Layout::replicated(),
             {.data = devices->take(0, 400), .device = 0, .ready_event = never});
  std::optional<Error> error;
  std::thread caller([&] { error = failure_of([&] { session.exchange(held, wanted); }); });
  std::this_thread::sleep_for(200ms);
  const auto began = std::chrono::steady_clock::now();
  session.close(200ms);
  BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));
  devices->fire(never);
  caller.join();
  BOOST_TEST((error->code() == ErrorCode::invalid_argument), error->what());
}

// Members number their exchanges in the order in which they run.
BOOST_AUTO_TEST_CASE(exchanges_of_several_threads_run_one_after_the_other) {
  const Deadline deadline(120s);
  const auto port = free_port();
  on_members(member_count, [&](int rank) {
    Session session = Session::join(member(rank, member_count, port), quick());
    const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {member_count}};
    on_members(4, [&](int) {
      for (int i = 0; i < 25; ++i) {
        TestShard from(spec, Layout::chunk(0, member_count), Rank{rank});
        TestShard to(spec, Layout::replicated(), Rank{rank});
        from.fill(7);
        Catalog held(Rank{rank}, member_count);
        Catalog wanted(Rank{rank}, member_count);
        from.add_to(held);
        to.add_to(wanted);
        session.exchange(held, wanted, {.timeout = patience});
        require(to.wrong(7) == 0, "both parts are there");
      }
    });
    session.gather("end", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(a_member_that_gives_up_ends_the_rounds_of_all_at_once) {
  const Deadline deadline(120s);
  const auto ring = aborted_ring({.rounds_hang = true}, [](Ring& one, Duration time) {
    one.options.timeout = time + 2 * promptly;
    one.deadlines[0] = time;
  });
  for (const int rank : {0, 1}) {
    BOOST_TEST((ring->error(rank).code() == ErrorCode::timed_out), ring->error(rank).what());
  }
  BOOST_TEST(says(ring->error(1), "the exchange failed on member 0: "), ring->error(1).what());
  BOOST_TEST(FakeNccl::instance().aborts() == 2);
}

BOOST_AUTO_TEST_CASE(a_group_that_has_failed_is_not_kept) {
  const Deadline deadline(120s);
  Ring ring({.init_state = transport::nccl::system_error});
  ring.run(2);
  for (const int rank : {0, 1}) BOOST_TEST(ring.errors[static_cast<std::size_t>(rank)].has_value());
  BOOST_TEST(FakeNccl::instance().made() == 4);
  BOOST_TEST(FakeNccl::instance().aborts() == 4);
}

BOOST_AUTO_TEST_SUITE_END()
