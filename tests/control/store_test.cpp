// SPDX-License-Identifier: Apache-2.0
// Members that find member 0 through a key-value store of the caller.
#include <netinet/in.h>
#include <sys/socket.h>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "support/descriptors.hpp"
#include "support/job.hpp"
#include "support/launch_variables.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(store)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

Bytes bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// A store in memory, for threads.
class MemoryStore : public KeyValueStore {
 public:
  void put(const std::string& key, const Bytes& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    callers_.insert(std::this_thread::get_id());
    changed_.notify_all();
  }
  std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) override {
    std::unique_lock lock(mutex_);
    callers_.insert(std::this_thread::get_id());
    ++gets_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) return std::nullopt;
    return values_[key];
  }
  /// Returns once it was asked so often: a member asks first, and again and again while it tries what it was told.
  void await_gets(int count) {
    std::unique_lock lock(mutex_);
    require(changed_.wait_for(lock, patience, [&] { return gets_ >= count; }), "members ask the store");
  }
  std::string text(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const Bytes& value = values_[key];
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }
  std::set<std::thread::id> callers() {
    const std::lock_guard lock(mutex_);
    return callers_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> values_;
  std::set<std::thread::id> callers_;
  int gets_ = 0;
};

struct StoreIsDown {};

class BrokenStore final : public KeyValueStore {
 public:
  void put(const std::string&, const Bytes&) override { throw StoreIsDown(); }
  std::optional<Bytes> get(const std::string&, std::chrono::nanoseconds) override { throw StoreIsDown(); }
};

/// A socket that listens on a loopback port, which no other test takes once it is closed.
struct LoopbackListener {
  explicit LoopbackListener(int backlog) : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(free_port());
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    constexpr socklen_t length = sizeof(sockaddr_in);
    // The connections that it accepted inherit this: without it, one that this side closed first keeps the port from the next listener.
    const int reuse = 1;
    BOOST_REQUIRE(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) == 0);
    BOOST_REQUIRE(::bind(socket.get(), raw, length) == 0);
    BOOST_REQUIRE(::listen(socket.get(), backlog) == 0);
  }
  [[nodiscard]] int port() const { return ntohs(address.sin_port); }

  support::Descriptor socket;
  sockaddr_in address{};
};

/// A loopback port that never accepts, since its queue is full: like an address that cannot be reached from here.
class SilentPort {
 public:
  SilentPort() {
    for (support::Descriptor& one : waiting_) {
      one.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(one.get(), reinterpret_cast<const sockaddr*>(&listener_.address), sizeof listener_.address);
    }
  }
  [[nodiscard]] int number() const { return listener_.port(); }

 private:
  LoopbackListener listener_{0};
  std::array<support::Descriptor, 4> waiting_;
};

/// Accepts connections on a loopback port, and never sends anything.
class MutePort {
 public:
  [[nodiscard]] int number() const { return listener_.port(); }
  /// Number of connections since the last call.
  int callers() {
    int count = 0;
    while (support::Descriptor(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC))) ++count;
    return count;
  }

 private:
  LoopbackListener listener_{64};
};

/// A store whose first answer takes this long.
class SlowStore final : public MemoryStore {
 public:
  explicit SlowStore(std::chrono::milliseconds delay) : delay_(delay) {}
  std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) override {
    std::this_thread::sleep_for(std::exchange(delay_, 0ms));
    return MemoryStore::get(key, timeout);
  }

 private:
  std::chrono::milliseconds delay_;
};

/// A bootstrap over loopback.
Bootstrap through(std::shared_ptr<KeyValueStore> store, int rank, int members, const std::string& run_id = "job") {
  Bootstrap bootstrap;
  bootstrap.rank = rank;
  bootstrap.world_size = members;
  bootstrap.local_size = members;
  bootstrap.run_id = run_id;
  bootstrap.store = std::move(store);
  return bootstrap;
}

SessionOptions patient_for(Duration timeout) {
  SessionOptions options = quick();
  options.join_timeout = timeout;
  return options;
}

/// Gathers the values of all members, which shows that each reached each other one.
void meet(Session& session) {
  const auto all = session.gather("met", Bytes(1, std::byte(session.rank())), 20s);
  for (std::size_t member = 0; member < all.size(); ++member)
    require(all[member].at(0) == std::byte(member), "a value");
}

/// Of a value in the store, which may have a key too.
std::string addresses_in(const std::string& value) {
  return value.substr(0, value.find("key "));
}

/// Joins as member 1 with this text in the store.
void join_by(const std::string& text) {
  const auto store = std::make_shared<MemoryStore>();
  store->put("shardwire/rendezvous/job", bytes_of(text));
  Session::join(through(store, 1, 2), quick());
}

}  // namespace

BOOST_AUTO_TEST_CASE(members_meet_on_a_port_that_the_system_gives) {
  const auto store = std::make_shared<MemoryStore>();
  on_members(4, [&](int member) {
    if (member == 0) store->await_gets(3);  // the others wait for it
    Session session = Session::join(through(store, member, 4), quick());
    meet(session);
  });
  BOOST_TEST(store->text("shardwire/rendezvous/job").starts_with("127.0.0.1 "));
}

BOOST_AUTO_TEST_CASE(member_0_is_read_from_where_the_others_have_found_it) {
  const auto store = std::make_shared<MemoryStore>();
  const TensorSpec weight{{"w", "exp_avg"}, DType::f32, {1024}};
  on_members(3, [&](int member) {
    Bootstrap bootstrap = through(store, member, 3);
    bootstrap.local_size = 0;  // not known: it listens on addresses that other hosts may reach
    Session session = Session::join(bootstrap, quick());
    TestShard shard(weight, Layout::replicated(), Rank{0});
    shard.fill(member == 0 ? 7 : 1);
    Publication publication;
    if (member == 0) {
      Catalog held(Rank{0}, 1);
      shard.add_to(held);
      publication = session.publish(held);
    } else {
      Catalog wanted(Rank{0}, 1);
      shard.add_to(wanted);
      session.restore(wanted, within(patience)).wait();
      require(shard.wrong(7) == 0, "the tensor is there");
    }
    meet(session);
  });
}

BOOST_AUTO_TEST_CASE(two_jobs_of_one_store_do_not_meet) {
  const auto store = std::make_shared<MemoryStore>();
  on_members(4, [&](int member) {
    Session session = Session::join(through(store, member % 2, 2, member < 2 ? "one" : "two"), quick());
    const auto all = session.gather("who", Bytes(1, std::byte(member)), 20s);
    const int first = member < 2 ? 0 : 2;
    require(all[0].at(0) == std::byte(first) && all[1].at(0) == std::byte(first + 1), "of this job");
  });
}

BOOST_AUTO_TEST_CASE(a_member_0_that_never_comes_is_named_in_time) {
  const auto began = std::chrono::steady_clock::now();
  const Error error =
      failure_of([] { Session::join(through(std::make_shared<MemoryStore>(), 2, 4), patient_for(300ms)); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
  BOOST_TEST(says(error, "waited 0.3 s for member 0"));
  BOOST_TEST((std::chrono::steady_clock::now() - began < 20s));
}

BOOST_AUTO_TEST_CASE(what_an_earlier_job_has_left_in_the_store_is_no_obstacle) {
  const auto store = std::make_shared<MemoryStore>();
  Session::join(through(store, 0, 1), quick()).close(5s);
  const std::string stale = store->text("shardwire/rendezvous/job");
  on_members(2, [&](int member) {
    if (member == 0) store->await_gets(2);  // the other has tried the stored address
    Session session = Session::join(through(store, member, 2), quick());
    meet(session);
  });
  BOOST_TEST(store->text("shardwire/rendezvous/job") != stale);
}

BOOST_AUTO_TEST_CASE(the_first_address_that_answers_is_taken) {
  const auto store = std::make_shared<MemoryStore>();
  Session zero = Session::join(through(store, 0, 2), quick());
  const std::string good = store->text("shardwire/rendezvous/job");
  const SilentPort silent;
  store->put("shardwire/rendezvous/job", bytes_of("127.0.0.1 " + std::to_string(free_port()) + "\n127.0.0.1 " +
                                                  std::to_string(silent.number()) + "\n" + good));
  Session one = Session::join(through(store, 1, 2), quick());
  on_members(2, [&](int member) { meet(member == 0 ? zero : one); });
}

BOOST_AUTO_TEST_CASE(an_address_of_another_job_is_passed_over) {
  const auto store = std::make_shared<MemoryStore>();
  const auto elsewhere = std::make_shared<MemoryStore>();
  Session zero = Session::join(through(store, 0, 2), quick());
  const Session other = Session::join(through(elsewhere, 0, 2, "other"), quick());
  store->put("shardwire/rendezvous/job",
             bytes_of(elsewhere->text("shardwire/rendezvous/other") + store->text("shardwire/rendezvous/job")));
  Session one = Session::join(through(store, 1, 2), quick());
  on_members(2, [&](int member) { meet(member == 0 ? zero : one); });
}

BOOST_AUTO_TEST_CASE(a_job_without_a_key_gets_one_through_its_store) {
  const auto store = std::make_shared<MemoryStore>();
  Session zero = Session::join(through(store, 0, 3), quick());
  const std::string value = store->text("shardwire/rendezvous/job");
  BOOST_TEST(value.size() - addresses_in(value).size() == 4U + 64U + 1U);
  Session one = Session::join(through(store, 1, 3), quick());
  // A stranger who knows the address, and not the store.
  Bootstrap stranger = member(2, 3, static_cast<std::uint16_t>(std::stoi(value.substr(value.find(' ') + 1))));
  stranger.run_id = "job";
  const Error error = failure_of([&] { Session::join(stranger, patient_for(5s)); });
  BOOST_TEST(says(error, "job key"), error.what());
  Session two = Session::join(through(store, 2, 3), quick());
  on_members(3, [&](int rank) { meet(rank == 0 ? zero : rank == 1 ? one : two); });
}

BOOST_AUTO_TEST_CASE(each_start_of_a_job_draws_another_key) {
  std::set<std::string> values;
  for (int start = 0; start < 3; ++start) {
    const auto store = std::make_shared<MemoryStore>();
    Session::join(through(store, 0, 1), quick()).close(5s);
    const std::string value = store->text("shardwire/rendezvous/job");
    values.insert(value.substr(value.find("key ")));
  }
  BOOST_TEST(values.size() == 3U);
}

BOOST_AUTO_TEST_CASE(a_key_that_was_given_is_not_put_into_the_store) {
  const auto store = std::make_shared<MemoryStore>();
  const auto with_key = [&](int rank) {
    Bootstrap bootstrap = through(store, rank, 2);
    bootstrap.job_key = Bytes(32, std::byte{5});
    return bootstrap;
  };
  Session zero = Session::join(with_key(0), quick());
  BOOST_TEST(store->text("shardwire/rendezvous/job").find("key") == std::string::npos);
  Session one = Session::join(with_key(1), quick());
  on_members(2, [&](int rank) { meet(rank == 0 ? zero : one); });
}

// The store holds an address of an earlier start of the job, where another job listens now.
BOOST_AUTO_TEST_CASE(who_finds_another_job_goes_on_looking_for_its_own) {
  const auto store = std::make_shared<MemoryStore>();
  const auto elsewhere = std::make_shared<MemoryStore>();
  const Session other = Session::join(through(elsewhere, 0, 2, "other"), quick());
  store->put("shardwire/rendezvous/job", bytes_of(elsewhere->text("shardwire/rendezvous/other")));
  on_members(2, [&](int member) {
    if (member == 0) store->await_gets(2);  // that job has refused the other member
    Session session = Session::join(through(store, member, 2), quick());
    meet(session);
  });
}

BOOST_AUTO_TEST_CASE(a_port_that_another_job_gives_up_is_asked_again) {
  const auto store = std::make_shared<MemoryStore>();
  Bootstrap earlier = through(std::make_shared<MemoryStore>(), 0, 2, "other");
  earlier.port = free_port();
  std::optional<Session> other = Session::join(earlier, quick());
  store->put("shardwire/rendezvous/job", bytes_of("127.0.0.1 " + std::to_string(earlier.port) + "\n"));
  on_members(2, [&](int member) {
    Bootstrap bootstrap = through(store, member, 2);
    bootstrap.port = earlier.port;  // so that the value in the store never changes
    bootstrap.job_key = Bytes(32, std::byte{5});
    if (member == 0) {
      store->await_gets(2);
      other.reset();
    }
    Session session = Session::join(bootstrap, quick());
    meet(session);
  });
}

BOOST_AUTO_TEST_CASE(who_was_refused_everywhere_says_by_whom_when_its_time_is_over) {
  const auto store = std::make_shared<MemoryStore>();
  const auto elsewhere = std::make_shared<MemoryStore>();
  const Session other = Session::join(through(elsewhere, 0, 2, "other"), quick());
  const std::string at = addresses_in(elsewhere->text("shardwire/rendezvous/other"));
  const auto began = std::chrono::steady_clock::now();
  for (const std::string& more : {std::string(), "127.0.0.1 " + std::to_string(free_port()) + "\n"}) {
    store->put("shardwire/rendezvous/job", bytes_of(at + more));
    const auto join = [&](Duration timeout) { Session::join(through(store, 1, 2), patient_for(timeout)); };
    const Error error = failure_by(500ms, join, [](const Error& one) { return says(one, "this is job 'other'"); });
    BOOST_TEST((error.code() == ErrorCode::timed_out));
    BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
    const std::string port = at.substr(at.find(' ') + 1, at.size() - at.find(' ') - 2);
    BOOST_TEST(
        says(error, "could not join at 127.0.0.1 port " + port + ", where member 0 has to be: this is job 'other'"),
        error.what());
  }
  BOOST_TEST((std::chrono::steady_clock::now() - began < 20s));
}

// The timer of the previous attempt must not end the new one.
BOOST_AUTO_TEST_CASE(an_address_that_the_store_names_anew_is_given_its_time) {
  const auto store = std::make_shared<MemoryStore>();
  store->put("shardwire/rendezvous/job", bytes_of("127.0.0.1 " + std::to_string(free_port()) + "\n"));
  MutePort later;
  on_members(2, [&](int member) {
    if (member == 0) {
      store->await_gets(1);
      store->put("shardwire/rendezvous/job", bytes_of("127.0.0.1 " + std::to_string(later.number()) + "\n"));
      return;
    }
    const Error error = failure_of([&] { Session::join(through(store, 1, 2), patient_for(4s)); });
    require(error.code() == ErrorCode::timed_out, "timed out");
    require(says(error, "port " + std::to_string(later.number())), error.what());
  });
  BOOST_TEST(later.callers() == 1);
}

BOOST_AUTO_TEST_CASE(how_little_time_was_left_to_connect_is_said) {
  MutePort mute;
  const auto join = [&](Duration timeout) {
    const auto store =
        std::make_shared<SlowStore>(std::chrono::duration_cast<std::chrono::milliseconds>(timeout) - 100ms);
    store->put("shardwire/rendezvous/job", bytes_of("127.0.0.1 " + std::to_string(mute.number()) + "\n"));
    Session::join(through(store, 1, 2), patient_for(timeout));
  };
  const Error error = failure_by(1s, join, [](const Error& one) { return says(one, "no answer in 0.0"); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST(says(error, "no answer in 0.0"), error.what());
}

// Once the address is known, only connecting remains.
BOOST_AUTO_TEST_CASE(fabrics_are_opened_before_member_0_is_waited_for) {
  const Environment environment(std::map<std::string, std::string>{{"SHARDWIRE_TCP_STREAMS", "many"}});
  SessionOptions options = patient_for(300ms);
  options.transport = "tcp";
  refused(ErrorCode::invalid_argument, "SHARDWIRE_TCP_STREAMS",
          [&] { Session::join(through(std::make_shared<MemoryStore>(), 1, 2), options); });
}

BOOST_AUTO_TEST_CASE(the_interface_that_is_named_is_the_one_that_is_put) {
  const auto store = std::make_shared<MemoryStore>();
  Bootstrap bootstrap = through(store, 0, 1);
  bootstrap.interface = "lo";
  bootstrap.local_size = 0;
  Session::join(bootstrap, quick()).close(5s);
  BOOST_TEST(store->text("shardwire/rendezvous/job").starts_with("127.0.0.1 "));
  bootstrap.port = free_port();
  Session::join(bootstrap, quick()).close(5s);
  BOOST_TEST(addresses_in(store->text("shardwire/rendezvous/job")) ==
             "127.0.0.1 " + std::to_string(bootstrap.port) + "\n");
}

BOOST_AUTO_TEST_CASE(the_store_is_called_on_the_thread_that_joins) {
  const auto store = std::make_shared<MemoryStore>();
  Session zero = Session::join(through(store, 0, 2), quick());
  Session one = Session::join(through(store, 1, 2), quick());
  BOOST_TEST((store->callers() == std::set<std::thread::id>{std::this_thread::get_id()}));
}

BOOST_AUTO_TEST_CASE(what_a_store_throws_comes_out_of_join) {
  for (const int member : {0, 1}) {
    BOOST_CHECK_THROW(Session::join(through(std::make_shared<BrokenStore>(), member, 2), quick()), StoreIsDown);
  }
}

BOOST_DATA_TEST_CASE(a_value_that_is_no_list_of_addresses_is_refused,
                     boost::unit_test::data::make({"", "\n", "127.0.0.1", "127.0.0.1 1", "127.0.0.1 0\n",
                                                   "127.0.0.1 65536\n", "127.0.0.1 1x\n", "host 1\n", "127.0.0.1 1\n\n",
                                                   " 1\n", "key 00\n", "127.0.0.1 1\nkey 0\n", "127.0.0.1 1\nkey 0x\n",
                                                   "127.0.0.1 1\nkey \n"}),
                     text) {
  refused(ErrorCode::transport_failed, "'shardwire/rendezvous/job' is no list", [&] { join_by(text); });
}

BOOST_AUTO_TEST_CASE(what_a_store_does_not_say_the_environment_does) {
  const Environment environment({{"SHARDWIRE_RUN_ID", "mine"},
                                 {"SHARDWIRE_PORT", "4711"},
                                 {"SHARDWIRE_INTERFACE", "lo"},
                                 {"SLURM_PROCID", "0"},
                                 {"SLURM_NTASKS", "3"},
                                 {"SLURM_NNODES", "1"}});
  const Bootstrap bootstrap = bootstrap_from_store(std::make_shared<MemoryStore>(), 1, 3);
  BOOST_TEST(bootstrap.rank == 1);
  BOOST_TEST(bootstrap.world_size == 3);
  BOOST_TEST(bootstrap.local_size == 3);
  BOOST_TEST(bootstrap.run_id == "mine");
  BOOST_TEST(bootstrap.port == 4711);
  BOOST_TEST(bootstrap.interface == "lo");
  BOOST_TEST(bootstrap_from_store(std::make_shared<MemoryStore>(), 1, 2).local_size == 0);  // fewer than were launched
  refused(ErrorCode::invalid_argument, "there is no store", [] { bootstrap_from_store(nullptr, 0, 1); });
}

BOOST_AUTO_TEST_SUITE_END()
