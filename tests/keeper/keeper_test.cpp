// SPDX-License-Identifier: Apache-2.0
// State that outlives its trainers: a keeper, jobs that end, and jobs that begin again.
#include <unistd.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "keeper/kept_job.hpp"
#include "peers/keeper_link.hpp"
#include "runtime/stream.hpp"
#include "session/surroundings.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(keepers)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::test::kept_job;
using namespace std::chrono_literals;

namespace {

/// A job whose members keep each step, and then end.
void train(const KeeperOptions& keeper, int ranks, std::int64_t first, std::int64_t last) {
  const std::uint16_t port = free_port();
  on_members(ranks, [&](int rank) {
    Session session = Session::join(member(rank, ranks, port), with(keeper));
    State state(rank, ranks);
    Publication publication;
    for (std::int64_t step = first; step <= last; ++step) {
      state.set(step);
      publication = Publication();
      publication = session.publish(state.catalog, kept(step));
      state.set(4711);  // training goes on
    }
    session.gather("done", {}, patience);
  });
}

std::shared_ptr<memory::SharedMemory> all_pages(ByteCount bytes) {
  return std::make_shared<memory::SharedMemory>(bytes, memory::SharedMemory::Pages::at_once);
}

/// The first memory that a keeper takes is not there before release().
class HeldUp {
 public:
  ~HeldUp() { release(); }
  Allocate allocate() {
    return [this](ByteCount bytes, int) {
      if (calls_++ > 0) return all_pages(bytes);
      begun_.set_value();
      released_.get_future().wait();
      const auto memory = all_pages(bytes);
      const std::lock_guard lock(mutex_);
      first_ = memory;
      return memory;
    };
  }
  void wait_for_first() { begun_.get_future().wait(); }
  void release() {
    if (!std::exchange(is_released_, true)) released_.set_value();
  }
  void wait_until_first_is_freed() {
    while (true) {
      const std::lock_guard lock(mutex_);
      if (first_ && first_->expired()) return;
      std::this_thread::yield();
    }
  }

 private:
  std::atomic<int> calls_ = 0;
  std::promise<void> begun_;
  std::promise<void> released_;
  bool is_released_ = false;
  std::mutex mutex_;
  std::optional<std::weak_ptr<memory::SharedMemory>> first_;
};

/// A keeper whose log is kept.
class LoggedKeeper {
 public:
  explicit LoggedKeeper(const KeeperOptions& options)
      : keeper_(start(options, 64u << 20, {}, [this](LogLevel level, std::string_view text) {
          const std::lock_guard lock(mutex_);
          lines_.emplace_back(level, text);
        })) {}
  [[nodiscard]] std::vector<std::string> lines(LogLevel level, std::string_view begin) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const auto& [its_level, text] : lines_) {
      if (its_level == level && text.starts_with(begin)) found.push_back(text);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_;  // guarded by mutex_
  std::unique_ptr<shardwire::keeper::Keeper> keeper_;
};

/// The keeper of one host among several; here they are all in this process.
KeeperOptions of_host(KeeperOptions options, int host) {
  options.socket = options.job + " host " + std::to_string(host);
  return options;
}

ErrorCode code_of_failed_publish(Session& session, State& state, const std::string& name) {
  PublishOptions options = kept(1);
  options.name = name;
  return failure_of([&] { static_cast<void>(session.publish(state.catalog, options)); }).code();
}

/// Of a process that is no member.
wire::Message answer_of(const KeeperOptions& options,
                        const std::function<wire::Message(std::uint64_t request)>& message_for) {
  const auto loop = detail::surroundings_of_process().loop;
  std::unique_ptr<KeeperLink> link;
  std::promise<wire::Message> answer;
  loop->call([&] {
    link = std::make_unique<KeeperLink>(*loop, options, keeper_identity(options, wire::no_member, 0, {}));
    link->request(message_for, [&](wire::Message* reply, const std::exception_ptr& error) {
      error ? answer.set_exception(error) : answer.set_value(*reply);
    });
  });
  wire::Message given = answer.get_future().get();
  loop->end([&] { link.reset(); });
  return given;
}

nlohmann::json status_of(const KeeperOptions& options) {
  const wire::Message answer =
      answer_of(options, [](std::uint64_t request) { return wire::KeepStatusRequest{request}; });
  return nlohmann::json::parse(std::get<wire::KeepStatus>(answer).json);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_job_that_has_ended_is_restored_in_another_layout) {
  const Deadline deadline(240s);
  const KeeperOptions options = named("relayout");
  const auto keeper = start(options);
  train(options, 4, 1, 3);
  const std::uint16_t port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), with(options));
    BOOST_TEST(restored(session, rank, 3) == 3);
    session.gather("done", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(what_a_job_keeps_again_replaces_what_was_left_of_the_one_before) {
  const Deadline deadline(240s);
  const KeeperOptions options = named("again");
  const auto keeper = start(options);
  train(options, 2, 1, 2);
  train(options, 3, 2, 4);
  const std::uint16_t port = free_port();
  Session session = Session::join(member(0, 1, port), with(options));
  BOOST_TEST(restored(session, 0, 1) == 4);
  BOOST_TEST(session.inventory("state", 2, patience).publishers.empty());
}

BOOST_AUTO_TEST_CASE(a_trainer_that_is_lost_is_read_from_the_keeper_in_the_same_session) {
  const Deadline deadline(240s);
  const KeeperOptions options = named("lost");
  const auto keeper = start(options);
  const std::uint16_t port = free_port();
  std::vector<std::optional<Session>> sessions(2);
  on_members(2, [&](int rank) {
    sessions[static_cast<std::size_t>(rank)].emplace(Session::join(member(rank, 2, port), with(options)));
  });
  State zero(0, 2);
  State one(1, 2);
  zero.set(5);
  one.set(5);
  const Publication of_zero = sessions[0]->publish(zero.catalog, kept(5));
  {
    const Publication of_one = sessions[1]->publish(one.catalog, kept(5));
    sessions[1].reset();
  }
  BOOST_TEST(restored(*sessions[0], 0, 1) == 5);
}

// Rank 1 has not replaced step 5 when it is lost; rank 0 does so before or after. Each has a host with a keeper of its own.
BOOST_DATA_TEST_CASE(ranks_that_are_a_step_apart_when_one_is_lost_go_back_to_the_step_that_both_had,
                     boost::unit_test::data::make({false, true}), is_late) {
  const Deadline deadline(240s);
  const KeeperOptions options = named(is_late ? "late-step" : "step");
  const auto first = start(of_host(options, 0));
  const auto second = start(of_host(options, 1));
  const std::uint16_t port = free_port();
  std::vector<std::optional<Session>> sessions(2);
  on_members(2, [&](int rank) {
    sessions[static_cast<std::size_t>(rank)].emplace(
        Session::join(member(rank, 2, port), with(of_host(options, rank))));
  });
  State zero(0, 2);
  State one(1, 2);
  Publication of_zero;
  const auto publish_zero = [&](std::int64_t step) {
    zero.set(step);
    of_zero = Publication();
    of_zero = sessions[0]->publish(zero.catalog, kept(step));
  };
  publish_zero(5);
  if (!is_late) publish_zero(6);
  one.set(5);
  {
    const Publication of_one = sessions[1]->publish(one.catalog, kept(5));
    sessions[1].reset();
  }
  if (is_late) {
    BOOST_TEST(restored(*sessions[0], 0, 1) == 5);  // the loss is known
    publish_zero(6);
  }
  BOOST_TEST(restored(*sessions[0], 0, 1) == 5);
  State whole(0, 1);
  Restore restore = sessions[0]->restore(whole.catalog, within(patience));  // without a rule or a step
  restore.wait();
  BOOST_TEST(whole.wrong(5) == 0U);

  // Rank 0 goes on from there; what it had replaced is not published any more.
  publish_zero(5);
  BOOST_TEST(restored(*sessions[0], 0, 1) == 5);
  publish_zero(6);
  const auto is_published = [](const nlohmann::json& kept_one) { return kept_one.at("published").get<bool>(); };
  const auto published_of_zero = [&] {
    const auto all = status_of(of_host(options, 0)).at("kept");
    return std::count_if(all.begin(), all.end(), is_published);
  };
  while (published_of_zero() > 0) {
  }
}

BOOST_AUTO_TEST_CASE(a_restore_that_loses_its_only_holder_goes_on_with_the_keeper) {
  const Deadline deadline(240s);
  const KeeperOptions options = named("lost-while-read");
  const auto keeper = start(options);
  const std::uint16_t port = free_port();
  std::vector<std::optional<Session>> sessions(2);
  SessionOptions reading = with(options);
  reading.log = [&sessions](LogLevel, std::string_view text) {
    if (text.starts_with("restore of '")) sessions[1].reset();  // all is bound, and nothing has moved
  };
  on_members(2, [&](int rank) {
    sessions[static_cast<std::size_t>(rank)].emplace(
        Session::join(member(rank, 2, port), rank == 0 ? reading : with(options)));
  });
  State zero(0, 2);
  State one(1, 2);
  zero.set(5);
  one.set(5);
  const Publication of_zero = sessions[0]->publish(zero.catalog, kept(5));
  const Publication of_one = sessions[1]->publish(one.catalog, kept(5));
  State state(0, 1);
  Restore restore = sessions[0]->restore(state.catalog, newest());
  restore.wait();
  BOOST_TEST(state.wrong(5) == 0U);
  BOOST_REQUIRE(restore.report().lost.size() == 1U);
  BOOST_TEST((restore.report().lost[0].rank == Rank{1}));
}

BOOST_AUTO_TEST_CASE(a_byte_that_changes_in_a_keeper_is_found_by_the_digests_of_the_trainer) {
  const Deadline deadline(240s);
  const KeeperOptions options = named("rotten");
  TakenMemory memory;
  const auto keeper = start(options, 64u << 20, memory.allocate());
  {
    Session session = Session::join(member(0, 1, free_port()), with(options));
    State state(0, 1);
    state.set(1);
    PublishOptions digested = kept(1);
    digested.digest = true;
    const Publication publication = session.publish(state.catalog, digested);
  }
  Session session = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(restored(session, 0, 1) == 1);
  memory.rot();
  State state(0, 1);
  Restore restore = session.restore(state.catalog, newest());
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::corrupt), error.what());
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
  BOOST_TEST(says(error, "w:exp_avg"), error.what());
  BOOST_REQUIRE(!error.gaps().empty());
  BOOST_TEST(error.gaps().front().fqn == "w");
  BOOST_TEST(!restore.report().corrupt.empty());
}

BOOST_AUTO_TEST_CASE(a_keeper_without_room_refuses_and_nothing_is_published) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("full");
  const auto keeper = start(options, 6000);
  const std::uint16_t port = free_port();
  Session session = Session::join(member(0, 1, port), with(options));
  State state(0, 1);
  state.set(1);
  const Error error = failure_of([&] { session.publish(state.catalog, kept(1)); });
  BOOST_TEST((error.code() == ErrorCode::out_of_resources), error.what());
  BOOST_TEST(says(error, "6000"), error.what());
  BOOST_TEST(session.inventory("state", {}, patience).publishers.empty());
  const Publication without = session.publish(state.catalog, {.step = 1, .snapshot = Snapshot::copy});
  BOOST_TEST(restored(session, 0, 1) == 1);
}

BOOST_AUTO_TEST_CASE(without_a_keeper_a_job_runs_with_a_warning_and_keeps_nothing) {
  const Deadline deadline(120s);
  std::vector<std::string> warnings;
  const std::uint16_t port = free_port();
  const KeeperOptions options = named("absent");
  {
    Session session = Session::join(member(0, 1, port), with(options, &warnings));
    State state(0, 1);
    state.set(1);
    const Error error = failure_of([&] { session.publish(state.catalog, kept(1)); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST(says(error, options.job), error.what());
    Session::join(member(0, 1, free_port()), quick()).close(1s);
  }
  BOOST_TEST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0].find("nothing is restored from a keeper") != std::string::npos, warnings[0]);

  Session session = Session::join(member(0, 1, free_port()), quick());
  State state(0, 1);
  const Error unnamed = failure_of([&] { session.publish(state.catalog, kept(1)); });
  BOOST_TEST((unnamed.code() == ErrorCode::invalid_argument), unnamed.what());
  BOOST_TEST((failure_of([&] { session.publish(state.catalog, kept(1, -1)); }).code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_host_has_one_keeper_for_a_job) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("twice");
  const auto keeper = start(options);
  BOOST_CHECK_THROW(start(options), PortTaken);
  start(named("another"));
}

BOOST_AUTO_TEST_CASE(a_keeper_on_a_path_leaves_no_file_and_takes_over_one_that_was_left) {
  const Deadline deadline(120s);
  KeeperOptions options = named("path");
  options.socket = (std::filesystem::temp_directory_path() / (options.job + ".socket")).string();
  {
    const auto keeper = start(options);
    BOOST_TEST(std::filesystem::is_socket(options.socket));
    BOOST_CHECK_THROW(start(options), PortTaken);
    train(options, 1, 1, 1);
  }
  BOOST_TEST(!std::filesystem::exists(options.socket));
}

// A trainer of an attempt that is over may wake up late.
BOOST_AUTO_TEST_CASE(an_older_attempt_is_fenced) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("fenced");
  const auto keeper = start(options);
  Session old = Session::join(member(0, 1, free_port()), with(options));
  State state(0, 1);
  state.set(1);
  const Publication before = old.publish(state.catalog, kept(1));
  Session fresh = Session::join(member(0, 1, free_port()), with(options));
  state.set(2);
  auto other = kept(2);
  other.name = "late";
  const Error error = failure_of([&] { old.publish(state.catalog, other); });
  BOOST_TEST((error.code() == ErrorCode::cancelled), error.what());
  const Publication after = fresh.publish(state.catalog, kept(2));
  BOOST_TEST(restored(fresh, 0, 1) == 2);
}

// It asks again at each step.
BOOST_AUTO_TEST_CASE(a_keeper_warns_once_of_each_trainer_that_it_refuses) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("refused");
  LoggedKeeper keeper(options);
  State state(0, 1);
  state.set(1);
  std::vector<Session> old;
  for (int i = 0; i < 2; ++i) old.push_back(Session::join(member(0, 1, free_port()), with(options)));
  const Session living = Session::join(member(0, 1, free_port()), with(options));
  for (Session& one : old) {
    // The first time it may not know yet that it was dismissed.
    for (int step = 0; step < 4; ++step) code_of_failed_publish(one, state, "late");
  }
  BOOST_TEST(keeper.lines(LogLevel::warning, "refused member 0: ").size() == 2U);
}

// It has forgotten both attempts. Their members know which is the newer one.
BOOST_AUTO_TEST_CASE(a_keeper_that_was_started_again_fences_an_older_attempt) {
  const Deadline deadline(240s);
  for (const bool older_first : {false, true}) {
    const KeeperOptions options = named(older_first ? "woken-first" : "woken-later");
    auto keeper = start(options);
    Session old = Session::join(member(0, 1, free_port()), with(options));
    Session living = Session::join(member(0, 1, free_port()), with(options));
    State state(0, 1);
    state.set(1);
    keeper.reset();
    for (Session* const session : {&old, &living}) code_of_failed_publish(*session, state, "lost");
    keeper = start(options);
    PublishOptions woken = kept(1);
    woken.name = "woken";
    Publication of_old;
    if (older_first) of_old = old.publish(state.catalog, woken);
    const Publication before = living.publish(state.catalog, kept(1));
    BOOST_TEST((code_of_failed_publish(old, state, "late") == ErrorCode::cancelled));
    PublishOptions next = kept(1);
    next.name = "next";
    const Publication after = living.publish(state.catalog, next);
    BOOST_TEST(status_of(options).at("attempts") == 2);
  }
}

// The keeper that counted the older attempt has ended, and no other has met it.
BOOST_AUTO_TEST_CASE(an_attempt_that_a_new_keeper_has_never_met_is_fenced_when_it_wakes_up) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("never-met");
  auto keeper = start(options);
  Session::join(member(0, 1, free_port()), with(options)).close(patience);
  Session old = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(status_of(options).at("attempts") == 2);
  State state(0, 1);
  state.set(1);
  keeper.reset();
  code_of_failed_publish(old, state, "lost");
  keeper = start(options);
  Session living = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(status_of(options).at("attempts") == 1);
  BOOST_TEST((code_of_failed_publish(old, state, "late") == ErrorCode::cancelled));
  const Publication publication = living.publish(state.catalog, kept(1));
  BOOST_TEST(restored(living, 0, 1) == 1);
}

// As while the keeper hangs: it hears of a session long after that has been joined. An older one was joined there.
BOOST_AUTO_TEST_CASE(a_job_that_a_keeper_hears_of_late_is_not_fenced) {
  const Deadline deadline(240s);
  for (const bool older_first : {false, true}) {
    KeeperOptions options = named(older_first ? "late-after" : "late");
    options.socket = (std::filesystem::temp_directory_path() / (options.job + ".socket")).string();
    const std::string away = options.socket + ".away";
    const auto keeper = start(options);
    Session old = Session::join(member(0, 1, free_port()), with(options));
    std::filesystem::rename(options.socket, away);
    Session living = Session::join(member(0, 1, free_port()), with(options));
    std::filesystem::rename(away, options.socket);
    State state(0, 1);
    state.set(1);
    PublishOptions unknowing = kept(1);
    unknowing.name = "unknowing";
    Publication of_old;
    if (older_first) of_old = old.publish(state.catalog, unknowing);
    const Publication publication = living.publish(state.catalog, kept(1));
    BOOST_TEST((code_of_failed_publish(old, state, "fenced") == ErrorCode::cancelled));
    PublishOptions next = kept(1);
    next.name = "next";
    const Publication after = living.publish(state.catalog, next);
    BOOST_TEST(restored(living, 0, 1) == 1);
  }
}

// As a container whose clock is ahead of that of the others.
BOOST_AUTO_TEST_CASE(a_session_does_not_begin_later_than_its_keeper_hears_of_it) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("ahead");
  const auto keeper = start(options);
  const wire::Message answer = answer_of(options, [](std::uint64_t request) {
    return wire::KeepJob{.request = request,
                         .session = 4711,
                         .address = "127.0.0.1",
                         .port = 1,
                         .began_ns = std::numeric_limits<std::int64_t>::max()};
  });
  BOOST_TEST(std::holds_alternative<wire::KeepJoined>(answer));
  Session living = Session::join(member(0, 1, free_port()), with(options));
  State state(0, 1);
  state.set(1);
  const Publication publication = living.publish(state.catalog, kept(1));
  BOOST_TEST(restored(living, 0, 1) == 1);
}

// It had joined late, and did not know when its session began. A member that knows makes another session the newest.
BOOST_AUTO_TEST_CASE(members_of_a_session_that_turns_out_to_be_older_are_dismissed) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("older");
  const auto keeper = start(options);
  Session living = Session::join(member(0, 1, free_port()), with(options));
  const auto loop = detail::surroundings_of_process().loop;
  std::unique_ptr<KeeperLink> older;
  loop->call(
      [&] { older = std::make_unique<KeeperLink>(*loop, options, keeper_identity(options, wire::no_member, 0, {})); });
  const auto tell = [&](std::int64_t began_ns) {
    std::promise<void> answer;
    loop->call([&] {
      older->request(
          [&](std::uint64_t request) {
            return wire::KeepJob{
                .request = request, .session = 4711, .address = "127.0.0.1", .port = 1, .began_ns = began_ns};
          },
          [&](wire::Message*, const std::exception_ptr& error) {
            error ? answer.set_exception(error) : answer.set_value();
          });
    });
    answer.get_future().get();
  };
  tell(std::numeric_limits<std::int64_t>::max());
  BOOST_TEST((failure_of([&] { tell(0); }).code() == ErrorCode::cancelled));
  State state(0, 1);
  state.set(1);
  std::optional<Publication> publication;
  while (!publication) {
    try {
      publication = living.publish(state.catalog, kept(1));
    } catch (const Error& error) {
      // It was dismissed, and does not know that yet.
      BOOST_REQUIRE((error.code() == ErrorCode::cancelled || error.code() == ErrorCode::peer_lost));
    }
  }
  while (loop->call([&] { return older->connected(); })) std::this_thread::sleep_for(10ms);
  loop->end([&] { older.reset(); });
}

// The keeper of member 0's host is new.
BOOST_AUTO_TEST_CASE(all_keepers_of_a_session_count_it_as_the_one_that_has_seen_most) {
  const Deadline deadline(240s);
  const KeeperOptions has_seen = of_host(named("counted"), 0);
  const KeeperOptions is_new = of_host(named("counted"), 1);
  const auto first = start(has_seen);
  for (int i = 0; i < 3; ++i) Session::join(member(0, 1, free_port()), with(has_seen)).close(patience);
  const auto second = start(is_new);
  const std::uint16_t port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), with(rank == 0 ? is_new : has_seen));
    session.barrier(patience);
    while (status_of(rank == 0 ? is_new : has_seen).at("attempts") != 4) std::this_thread::sleep_for(10ms);
    session.barrier(patience);
  });
}

// A host that took no part in the second attempt comes back with what it holds of the first.
BOOST_AUTO_TEST_CASE(what_an_attempt_has_kept_counts_more_than_higher_steps_of_an_earlier_one) {
  const Deadline deadline(240s);
  const KeeperOptions stays = of_host(named("stale"), 0);
  const KeeperOptions away = of_host(named("stale"), 1);
  const auto of_stays = start(stays);
  const auto of_away = start(away);
  const auto on_both = [&](const std::function<void(Session&)>& body) {
    const std::uint16_t port = free_port();
    on_members(2, [&](int rank) {
      Session session = Session::join(member(rank, 2, port), with(rank == 0 ? stays : away));
      session.barrier(patience);
      body(session);
      session.barrier(patience);
    });
  };
  on_both([](Session& session) {
    State replica(0, 1);
    replica.set(100);
    const Publication publication = session.publish(replica.catalog, kept(100));
    session.barrier(patience);
  });
  train(stays, 1, 59, 60);  // goes back to step 58
  on_both([](Session& session) {
    BOOST_TEST(session.inventory("state", {}, patience).step == 60);
    BOOST_TEST(restored(session, 0, 1) == 60);
    State replica(0, 1);
    RestoreOptions earlier = within(patience);
    earlier.step = 100;
    session.restore(replica.catalog, earlier).wait();  // by its number
    BOOST_TEST(replica.wrong(100) == 0U);
  });
}

// The second attempt has lost a host. What is left of it holds all that this reader wants, and not what others want.
BOOST_AUTO_TEST_CASE(of_a_step_that_is_named_the_attempt_that_has_all_ranks_is_restored) {
  const Deadline deadline(240s);
  const KeeperOptions stays = of_host(named("whole"), 0);
  const KeeperOptions lost = of_host(named("whole"), 1);
  const auto of_stays = start(stays);
  auto of_lost = start(lost);
  train(stays, 2, 5, 5);
  const std::uint16_t port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), with(rank == 0 ? stays : lost));
    session.barrier(patience);
    State other(rank, 2);
    other.set(6);
    const Publication publication = session.publish(other.catalog, kept(5));
    session.barrier(patience);
  });
  of_lost.reset();
  Session session = Session::join(member(0, 1, free_port()), with(stays));
  State state(0, 2);
  RestoreOptions of_five = within(patience);
  of_five.step = 5;
  session.restore(state.catalog, of_five).wait();
  BOOST_TEST(state.wrong(5) == 0U);
}

// A reader that looks meanwhile does not find the earlier one alone.
BOOST_AUTO_TEST_CASE(a_keeper_publishes_later_attempts_first) {
  const Deadline deadline(240s);
  const KeeperOptions options = named("order");
  LoggedKeeper keeper(options);
  train(options, 1, 100, 100);
  train(options, 1, 60, 60);
  Session session = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(restored(session, 0, 1) == 60);
  const auto published = keeper.lines(LogLevel::info, "publishes ");
  const auto last = [&](const std::string& step) {
    const auto has = [&](const std::string& text) { return text.find(step) != std::string::npos; };
    return std::ranges::find_if(published.rbegin(), published.rend(), has) - published.rbegin();
  };
  BOOST_TEST(last("step 100,") < last("step 60,"));  // from the end
  BOOST_TEST(last("step 60,") < std::ssize(published));
}

// A job restores first: keepers cannot know whether one that has not done so begins from scratch.
BOOST_AUTO_TEST_CASE(what_a_session_publishes_hides_higher_steps_that_are_kept_and_a_warning_says_so) {
  const Deadline deadline(240s);
  const KeeperOptions options = named("hidden");
  const auto keeper = start(options);
  train(options, 1, 7, 7);
  std::vector<std::string> warnings;
  const auto named_in_warnings = [&] {
    return std::ranges::count_if(
        warnings, [](const std::string& one) { return one.find("counts as newer than step 7,") != std::string::npos; });
  };
  Session session = Session::join(member(0, 1, free_port()), with(options, &warnings));
  BOOST_TEST(session.inventory("state", {}, patience).step == 7);
  State state(0, 1);
  state.set(1);
  Publication fresh = session.publish(state.catalog, {.step = 1, .snapshot = Snapshot::copy});
  BOOST_TEST(named_in_warnings() == 0);
  BOOST_TEST(session.inventory("state", {}, patience).step == 1);
  BOOST_TEST(named_in_warnings() == 1);
  BOOST_TEST(restored(session, 0, 1) == 1);
  State wanted(0, 1);
  session.restore(wanted.catalog, within(patience)).wait();  // StepRule::agreed
  BOOST_TEST(wanted.wrong(1) == 0U);
  RestoreOptions seventh = within(patience);
  seventh.step = 7;
  session.restore(wanted.catalog, seventh).wait();
  BOOST_TEST(wanted.wrong(7) == 0U);
  fresh.retire(patience);
  state.set(2);
  fresh = session.publish(state.catalog, {.step = 2, .snapshot = Snapshot::copy});
  BOOST_TEST(restored(session, 0, 1) == 2);
  BOOST_TEST(named_in_warnings() == 1);
}

BOOST_AUTO_TEST_CASE(a_keeper_that_is_there_again_is_used_again) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("restarted");
  auto keeper = start(options);
  Session session = Session::join(member(0, 1, free_port()), with(options));
  State state(0, 1);
  state.set(1);
  Publication publication = session.publish(state.catalog, kept(1));
  keeper.reset();
  BOOST_TEST(restored(session, 0, 1) == 1);  // from its trainer
  publication = Publication();
  state.set(2);
  BOOST_TEST((failure_of([&] { session.publish(state.catalog, kept(2)); }).code() == ErrorCode::peer_lost));
  keeper = start(options);
  publication = session.publish(state.catalog, kept(2));
  session.close(patience);
  Session next = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(restored(next, 0, 1) == 2);
}

BOOST_AUTO_TEST_CASE(a_keeper_serves_others_while_it_takes_memory_for_one_trainer) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("beside");
  HeldUp held_up;
  const auto keeper = start(options, 64u << 20, held_up.allocate());
  const std::uint16_t port = free_port();
  std::vector<std::optional<Session>> sessions(2);
  on_members(2, [&](int rank) {
    sessions[static_cast<std::size_t>(rank)].emplace(Session::join(member(rank, 2, port), with(options)));
  });
  State zero(0, 2);
  State one(1, 2);
  zero.set(5);
  one.set(5);
  auto of_zero = std::async(std::launch::async, [&] { return sessions[0]->publish(zero.catalog, kept(5)); });
  held_up.wait_for_first();
  const Publication of_one = sessions[1]->publish(one.catalog, kept(5));
  const nlohmann::json now = status_of(options);
  BOOST_TEST(now.at("used_bytes").get<ByteCount>() >= 2 * zero.w.size_bytes());  // the first one is reserved
  BOOST_TEST(now.at("kept").size() == 2U);
  BOOST_TEST((of_zero.wait_for(0s) == std::future_status::timeout));
  held_up.release();
  const Publication first = of_zero.get();
  BOOST_TEST(restored(*sessions[1], 0, 1) == 5);
}

BOOST_AUTO_TEST_CASE(memory_that_is_taken_for_a_trainer_that_has_gone_is_freed) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("gone");
  HeldUp held_up;
  const auto keeper = start(options, 2 * 3960 + 100, held_up.allocate());  // for one trainer
  State state(0, 1);
  state.set(1);
  std::optional<Session> first(Session::join(member(0, 1, free_port()), with(options)));
  auto unfinished = std::async(std::launch::async, [&] { static_cast<void>(first->publish(state.catalog, kept(1))); });
  held_up.wait_for_first();
  first->close(patience);
  BOOST_CHECK_THROW(unfinished.get(), Error);
  Session next = Session::join(member(0, 1, free_port()), with(options));
  State again(0, 1);
  again.set(2);
  const Publication publication = next.publish(again.catalog, kept(2));
  BOOST_TEST(restored(next, 0, 1) == 2);
  held_up.release();
  held_up.wait_until_first_is_freed();
  BOOST_TEST(status_of(options).at("kept").size() == 1U);
}

BOOST_AUTO_TEST_CASE(memory_that_the_host_does_not_give_is_an_error_of_the_trainer_and_takes_no_room) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("refused");
  int calls = 0;  // one trainer's, one after the other
  int node = -2;
  const auto keeper = start(options, 2 * 3960 + 100, [&](ByteCount bytes, int numa_node) {
    node = numa_node;
    if (++calls == 1) throw Error(ErrorCode::out_of_resources, "the host has no memory left");
    return all_pages(bytes);
  });
  Session session = Session::join(member(0, 1, free_port()), with(options));
  State state(0, 1);
  state.set(1);
  const Error error = failure_of([&] { static_cast<void>(session.publish(state.catalog, kept(1))); });
  BOOST_TEST((error.code() == ErrorCode::out_of_resources), error.what());
  BOOST_TEST(says(error, "the host has no memory left"), error.what());
  BOOST_TEST(status_of(options).at("used_bytes") == 0);
  BOOST_TEST(node >= 0);  // where this process runs
  const Publication publication = session.publish(state.catalog, kept(1));
  BOOST_TEST(restored(session, 0, 1) == 1);
}

BOOST_AUTO_TEST_CASE(memory_of_the_keeper_is_used_again_by_its_trainer) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("reuse");
  // Two snapshots of 3960 bytes: the kept one, the one that is written, and no more.
  const auto keeper = start(options, 2 * 3960 + 100);
  Session session = Session::join(member(0, 1, free_port()), with(options));
  State state(0, 1);
  Publication publication;
  for (std::int64_t step = 1; step <= 20; ++step) {
    state.set(step);
    publication = Publication();
    publication = session.publish(state.catalog, kept(step));
    BOOST_TEST(restored(session, 0, 1) == step);
  }
}

BOOST_AUTO_TEST_CASE(an_update_is_kept_like_what_it_replaces) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("update");
  const auto keeper = start(options);
  {
    Session session = Session::join(member(0, 1, free_port()), with(options));
    State state(0, 1);
    state.set(1);
    Publication publication = session.publish(state.catalog, kept(1));
    for (std::int64_t step = 2; step <= 4; ++step) {
      state.set(step);
      publication.update(state.catalog, step, Snapshot::none, patience);
      state.set(4711);
    }
  }
  Session next = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(restored(next, 0, 1) == 4);
}

// The keeper goes on trying to reach a session that has ended; another one begins where that was. That is usual, so
// the log has no warning of it.
BOOST_AUTO_TEST_CASE(nothing_is_published_in_a_session_that_has_not_asked_for_it) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("port");
  LoggedKeeper keeper(options);
  const std::uint16_t port = free_port();
  {
    Session session = Session::join(member(0, 1, port), with(options));
    State state(0, 1);
    state.set(5);
    const Publication publication = session.publish(state.catalog, kept(5));
  }
  Session other = Session::join(member(0, 1, port), quick());
  const std::string given_up = "cannot publish 'state', step 5, rank 0 in the session at ";
  BOOST_TEST(run_until([] {}, [&] { return !keeper.lines(LogLevel::info, given_up).empty(); }, patience));
  BOOST_TEST(keeper.lines(LogLevel::warning, "").empty());
  BOOST_TEST(other.inventory("state", {}, patience).publishers.empty());
  other.close(1s);
  Session asking = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(restored(asking, 0, 1) == 5);
}

BOOST_AUTO_TEST_CASE(what_could_not_be_published_is_not_kept) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("taken-back");
  const auto keeper = start(options);
  {
    Session session = Session::join(member(0, 1, free_port()), with(options));
    State state(0, 1);
    state.set(1);
    const Publication publication = session.publish(state.catalog, kept(1));
    state.set(2);
    const Error error = failure_of([&] { session.publish(state.catalog, kept(2)); });  // the name is in use
    BOOST_TEST((error.code() == ErrorCode::invalid_argument), error.what());
  }
  Session next = Session::join(member(0, 1, free_port()), with(options));
  BOOST_TEST(restored(next, 0, 1) == 1);
}

BOOST_AUTO_TEST_CASE(a_rank_that_holds_nothing_keeps_that) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("empty");
  const auto keeper = start(options);
  const TensorSpec small{{"s", "exp_avg"}, DType::f32, {1, 4}};
  const Layout layout = Layout::chunk(0, 2);
  const std::uint16_t port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), with(options));
    TestShard shard(small, layout, Rank{rank});
    shard.fill(3);
    Catalog held(Rank{rank}, 2);
    shard.add_to(held);
    const Publication publication = session.publish(held, kept(3));
    session.gather("published", {}, patience);
  });
  Session next = Session::join(member(0, 1, free_port()), with(options));
  TestShard all(small, Layout::replicated(), Rank{0});
  Catalog wanted(Rank{0}, 1);
  all.add_to(wanted);
  next.restore(wanted, newest()).wait();
  BOOST_TEST(all.wrong(3) == 0U);
}

BOOST_AUTO_TEST_CASE(a_keeper_of_another_key_is_not_used) {
  const Deadline deadline(120s);
  const KeeperOptions options = named("key");
  const auto keeper = start(options);
  std::vector<std::string> warnings;
  Bootstrap keyed = member(0, 1, free_port());
  keyed.job_key.assign(32, std::byte{1});
  Session session = Session::join(keyed, with(options, &warnings));
  BOOST_TEST(std::ranges::any_of(warnings,
                                 [](const auto& one) { return one.find("different job keys") != std::string::npos; }));
  State state(0, 1);
  state.set(1);
  BOOST_TEST((failure_of([&] { session.publish(state.catalog, kept(1)); }).code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
