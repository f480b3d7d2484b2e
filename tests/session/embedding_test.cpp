// SPDX-License-Identifier: Apache-2.0
// Faults of the embedding program that a session survives: exceptions, fork(), empty handles, wrong memory.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/deadline.hpp"
#include "support/fake_root.hpp"
#include "support/job.hpp"
#include "support/launch_variables.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(embedding)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const TensorSpec weight{{"w", "exp_avg"}, DType::f32, {1024}};

// A session alone in its job, with a tensor that it publishes.
struct Alone {
  explicit Alone(SessionOptions options = quick()) : session(Session::join(member(0, 1, free_port()), options)) {
    shard.fill(1);
    Catalog held(Rank{0}, 1);
    shard.add_to(held);
    publication = session.publish(held);
  }
  [[nodiscard]] Catalog wanted() {
    Catalog catalog(Rank{0}, 1);
    target.add_to(catalog);
    return catalog;
  }

  TestShard shard{weight, Layout::replicated(), Rank{0}};
  TestShard target{weight, Layout::replicated(), Rank{0}};
  Session session;
  Publication publication;
};

// Pages with the access `protection`.
class Pages {
 public:
  Pages(std::size_t bytes, int protection)
      : bytes_(bytes), data_(::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    BOOST_REQUIRE(data_ != MAP_FAILED);
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

Catalog catalog_at(void* data) {
  Catalog catalog(Rank{0}, 1);
  catalog.add(weight, Layout::replicated(), View{.data = data});
  return catalog;
}

template <typename Call>
bool refused_as_invalid(Call call) {
  return failure_of(call).code() == ErrorCode::invalid_argument;
}

// Exit status of a child of fork() that runs `body`; 0 means success.
template <typename Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);  // a destructor that never returns ends it by a signal
    int status = 1;
    try {
      status = body() ? 0 : 2;
    } catch (...) {
    }
    ::_exit(status);
  }
  int status = -1;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

std::set<std::string> thread_names() {
  std::set<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    names.insert(name);
  }
  return names;
}

struct CallersOwn {};

// The thread sanitizer ends a child of fork() if the process has threads.
boost::test_tools::assertion_result can_fork(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!with_thread_sanitizer);
  result.message() << "the thread sanitizer does not go on after fork()";
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_a_progress_callback_throws_comes_out_of_wait) {
  Alone alone;
  Catalog never(Rank{0}, 1);
  alone.target.add_to(never);
  RestoreOptions options = within(patience);
  options.name = "nobody publishes this";  // runs until the callback ends it
  Restore restore = alone.session.restore(never, options);
  restore.on_progress([](const Progress&) { throw CallersOwn(); }, 1ms);
  BOOST_CHECK_THROW(restore.wait(), CallersOwn);
  alone.session.restore(alone.wanted(), within(patience)).wait();  // the session still works
  BOOST_TEST(alone.target.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(what_the_last_progress_callback_throws_comes_out_of_wait) {
  Alone alone;
  Restore restore = alone.session.restore(alone.wanted(), within(patience));
  restore.on_progress(
      [](const Progress& progress) {
        if (std::string_view(progress.stage) == "done") throw CallersOwn();
      },
      10s);
  try {
    restore.wait();  // it may have ended before the callback was set
  } catch (const CallersOwn&) {
  }
  alone.session.restore(alone.wanted(), within(patience)).wait();
}

// Each of these calls waits for the session's thread, which runs the callback.
BOOST_AUTO_TEST_CASE(calls_that_wait_for_the_session_are_refused_in_its_callbacks) {
  const Deadline deadline(120s);
  Alone alone;
  RestoreOptions never = within(patience);
  never.name = "nobody publishes this";
  Restore waiting = alone.session.restore(alone.wanted(), never);
  Restore restore = alone.session.restore(alone.wanted(), never);
  std::map<std::string, std::string> answers;
  const auto note = [&](const char* name, auto call) {
    try {
      call();
      answers[name] = "accepted";
    } catch (const Error& error) {
      answers[name] = to_string(error.code());
    }
  };
  std::promise<void> called;
  restore.on_progress(
      [&](const Progress&) {
        if (!answers.empty()) return;
        note("gather", [&] { alone.session.gather("all", {}, patience); });
        note("paths", [&] { static_cast<void>(alone.session.paths()); });
        note("inventory", [&] { static_cast<void>(alone.session.inventory()); });
        note("await_step", [&] { static_cast<void>(alone.session.await_step("state", 0, patience)); });
        note("restore", [&] { alone.session.restore(alone.wanted(), within(patience)).wait(); });
        note("exchange", [&] { alone.session.exchange(Catalog(Rank{0}, 1), Catalog(Rank{0}, 1)); });
        note("start_exchange", [&] { alone.session.start_exchange(Catalog(Rank{0}, 1), Catalog(Rank{0}, 1)).wait(); });
        note("gather_layouts", [&] { static_cast<void>(alone.session.gather_layouts(alone.wanted(), patience)); });
        note("barrier", [&] { alone.session.barrier(patience); });
        note("wait", [&] { waiting.wait(); });
        note("wait_values", [&] { waiting.wait_values(); });
        note("wait_for", [&] { static_cast<void>(waiting.wait_for(patience)); });
        note("close", [&] { alone.session.close(patience); });
        called.set_value();
      },
      1ms);
  called.get_future().wait();
  for (const auto& [name, answer] : answers) BOOST_TEST(answer == "unsupported", name << " is " << answer);
  BOOST_TEST(answers.size() == 13U);
  // The session still works.
  alone.session.restore(alone.wanted(), within(patience)).wait();
  BOOST_TEST(alone.target.wrong(1) == 0U);
  BOOST_TEST(alone.session.gather("all", {}, patience).size() == 1U);
  alone.session.close(10s);
}

// Both wait for readers. The reader here stands once it has its lease.
BOOST_DATA_TEST_CASE(a_callback_cannot_wait_for_the_readers_of_a_publication,
                     boost::unit_test::data::make({false, true}), updates) {
  const Deadline deadline(120s);
  const auto port = free_port();
  Session holder = Session::join(member(0, 2, port), quick());
  TestShard shard(weight, Layout::replicated(), Rank{0});
  TestShard next(weight, Layout::replicated(), Rank{0});
  Catalog held(Rank{0}, 1);
  Catalog held_next(Rank{0}, 1);
  shard.fill(1);
  shard.add_to(held);
  next.fill(2);
  next.add_to(held_next);
  Publication publication = holder.publish(held);

  std::promise<void> bound;
  std::promise<void> refused;
  std::atomic<bool> stood = false;
  SessionOptions options = quick();
  options.log = [&, go_on = refused.get_future().share()](LogLevel, std::string_view text) {
    if (!text.starts_with("restore of '") || stood.exchange(true)) return;
    bound.set_value();
    go_on.wait();
  };
  Session reader = Session::join(member(1, 2, port), options);
  TestShard target(weight, Layout::replicated(), Rank{0});
  Catalog wanted(Rank{0}, 1);
  target.add_to(wanted);
  Restore restore = reader.restore(wanted, within(patience));
  bound.get_future().wait();

  std::string answer;
  RestoreOptions never = within(patience);
  never.name = "nobody publishes this";
  TestShard unused(weight, Layout::replicated(), Rank{0});
  Catalog other(Rank{0}, 1);
  unused.add_to(other);
  Restore calling = holder.restore(other, never);
  calling.on_progress(
      [&](const Progress&) {
        if (!answer.empty()) return;
        try {
          updates ? publication.update(held_next, 1, Snapshot::none, patience) : publication.retire(patience);
          answer = "accepted";
        } catch (const Error& error) {
          answer = to_string(error.code());
        }
        refused.set_value();
      },
      1ms);
  restore.wait();  // the memory stays as it is until then
  BOOST_TEST(answer == "unsupported");
  BOOST_TEST(target.wrong(1) == 0U);
  calling.cancel();
  BOOST_TEST((failure_of([&] { calling.wait(); }).code() == ErrorCode::cancelled));
  if (updates) {
    reader.restore(wanted, within(patience)).wait();
    BOOST_TEST(target.wrong(2) == 0U);
  }
}

// Calls that need no answer of the session's thread work there.
BOOST_AUTO_TEST_CASE(a_callback_may_publish_ordinary_memory_and_look_at_operations) {
  const Deadline deadline(120s);
  Alone alone;
  RestoreOptions never = within(patience);
  never.name = "nobody publishes this";
  Restore restore = alone.session.restore(alone.wanted(), never);
  TestShard shard(weight, Layout::replicated(), Rank{0});
  shard.fill(2);
  Catalog held(Rank{0}, 1);
  shard.add_to(held);
  Publication publication;
  std::promise<void> called;
  restore.on_progress(
      [&](const Progress&) {
        if (publication.valid()) return;
        publication = alone.session.publish(held, {.name = "other"});
        static_cast<void>(alone.session.usage());
        static_cast<void>(restore.poll());
        restore.cancel();
        called.set_value();
      },
      1ms);
  called.get_future().wait();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  RestoreOptions other = within(patience);
  other.name = "other";
  alone.session.restore(alone.wanted(), other).wait();
  BOOST_TEST(alone.target.wrong(2) == 0U);
}

// Handles that end in a callback: the session's thread cannot wait for itself.
BOOST_AUTO_TEST_CASE(handles_may_end_in_a_callback) {
  const Deadline deadline(120s);
  for (const bool whole_session : {false, true}) {
    auto alone = std::make_unique<Alone>();
    RestoreOptions never = within(patience);
    never.name = "nobody publishes this";
    auto ending = std::make_unique<Restore>(alone->session.restore(alone->wanted(), never));
    Restore restore = alone->session.restore(alone->wanted(), never);
    std::promise<void> called;
    restore.on_progress(
        [&](const Progress&) {
          if (!ending) return;
          ending.reset();
          if (whole_session) const Session ended(std::move(alone->session));
          called.set_value();
        },
        1ms);
    called.get_future().wait();
    if (!whole_session) restore.cancel();
    BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  }
}

namespace {

RestoreOptions of_nothing_published() {
  RestoreOptions options = within(patience);
  options.name = "nobody publishes this";
  return options;
}

// Calls `late` in a callback of the session that had begun before `first` was called on this thread.
template <typename First, typename Late>
void in_callback_after(Alone& alone, First first, Late late) {
  std::promise<void> begun;
  std::promise<void> go_on;
  std::promise<void> over;
  bool called = false;  // of the session's thread
  Restore calling = alone.session.restore(alone.wanted(), of_nothing_published());
  calling.on_progress(
      [&](const Progress&) {
        if (std::exchange(called, true)) return;
        begun.set_value();
        go_on.get_future().wait();
        late();
        over.set_value();
      },
      1ms);
  begun.get_future().wait();
  first();
  go_on.set_value();
  over.get_future().wait();
}

}  // namespace

// Tasks that another thread posts meanwhile run after the callback.
BOOST_AUTO_TEST_CASE(a_callback_cancels_a_restore_that_another_thread_has_just_started_or_resumed) {
  const Deadline deadline(120s);
  Alone alone;
  Restore restore;
  const auto cancel = [&] { restore.cancel(); };
  in_callback_after(
      alone, [&] { restore = alone.session.restore(alone.wanted(), of_nothing_published()); }, cancel);
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  in_callback_after(
      alone, [&] { restore.resume(patience); }, cancel);
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_CASE(a_callback_lets_a_restore_go_on_that_another_thread_has_just_started) {
  const Deadline deadline(120s);
  Alone alone;
  RestoreOptions options = within(patience);
  options.stop_at_values = true;
  Restore restore;
  in_callback_after(
      alone, [&] { restore = alone.session.restore(alone.wanted(), options); }, [&] { restore.proceed(); });
  restore.wait();
  BOOST_TEST(alone.target.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_callback_destroys_a_restore_that_another_thread_has_just_started_or_resumed) {
  const Deadline deadline(120s);
  Alone alone;
  std::optional<Restore> restore;
  const auto start = [&] { restore.emplace(alone.session.restore(alone.wanted(), of_nothing_published())); };
  const auto destroy = [&] { restore.reset(); };
  in_callback_after(alone, start, destroy);
  start();
  restore->cancel();
  BOOST_TEST((failure_of([&] { restore->wait(); }).code() == ErrorCode::cancelled));
  in_callback_after(
      alone, [&] { restore->resume(patience); }, destroy);
  // The session still works.
  alone.session.restore(alone.wanted(), within(patience)).wait();
  BOOST_TEST(alone.target.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_callback_destroys_restores_while_another_thread_ends_the_session) {
  const Deadline deadline(120s);
  Alone alone;
  const auto start = [&] { return alone.session.restore(alone.wanted(), of_nothing_published()); };
  std::optional<Restore> running = start();
  Restore failed = start();
  failed.cancel();
  BOOST_TEST((failure_of([&] { failed.wait(); }).code() == ErrorCode::cancelled));
  std::optional<Restore> posted;
  std::future<void> ended;
  in_callback_after(
      alone,
      [&] {
        posted = start();
        ended = std::async(std::launch::async, [&] { const Session ending(std::move(alone.session)); });
      },
      [&] {
        // Unsupported in a callback, and invalid once the session is closed.
        const auto resume = [&] { failed.resume(patience); };
        while (failure_of(resume).code() == ErrorCode::unsupported) std::this_thread::yield();
        running.reset();
        posted.reset();
      });
  ended.get();
}

// The session's thread ends one restore after the other.
BOOST_AUTO_TEST_CASE(a_callback_at_the_end_of_a_session_destroys_another_restore) {
  const Deadline deadline(120s);
  Alone alone;
  Restore first = alone.session.restore(alone.wanted(), of_nothing_published());
  std::optional<Restore> second = alone.session.restore(alone.wanted(), of_nothing_published());
  bool ended = false;
  first.on_done([&] { second.reset(); });
  second->on_done([&] { ended = true; });
  { const Session ending(std::move(alone.session)); }
  BOOST_TEST(!second.has_value());
  BOOST_TEST(ended);
  BOOST_TEST((failure_of([&] { first.wait(); }).code() == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_CASE(a_log_sink_destroys_the_restore_that_ends_with_its_session) {
  const Deadline deadline(120s);
  std::optional<Restore> restore;
  SessionOptions options = quick();
  options.log = [&](LogLevel, std::string_view text) {
    if (text.find(" is not restored") != std::string_view::npos) restore.reset();
  };
  Alone alone(options);
  restore = alone.session.restore(alone.wanted(), of_nothing_published());
  int ends = 0;
  restore->on_done([&] { ++ends; });
  { const Session ending(std::move(alone.session)); }
  BOOST_TEST(!restore.has_value());
  BOOST_TEST(ends == 1);
}

BOOST_AUTO_TEST_CASE(the_last_progress_callback_destroys_its_restore) {
  const Deadline deadline(120s);
  Alone alone;
  RestoreOptions options = within(patience);
  options.name = "later";
  std::optional<Restore> restore = alone.session.restore(alone.wanted(), options);
  std::promise<void> destroyed;
  restore->on_progress([&](const Progress& progress) {
    if (std::string_view(progress.stage) != "done") return;
    restore.reset();
    destroyed.set_value();
  });
  TestShard shard(weight, Layout::replicated(), Rank{0});
  shard.fill(2);
  Catalog held(Rank{0}, 1);
  shard.add_to(held);
  const Publication publication = alone.session.publish(held, {.name = "later"});
  destroyed.get_future().wait();
  BOOST_TEST(alone.target.wrong(2) == 0U);
  // The session still works.
  alone.session.restore(alone.wanted(), within(patience)).wait();
}

BOOST_AUTO_TEST_CASE(what_a_log_sink_throws_comes_out_of_wait) {
  SessionOptions options = quick();
  const auto throwing = std::make_shared<std::atomic<bool>>(false);
  options.log = [throwing](LogLevel, std::string_view) {
    if (*throwing) throw CallersOwn();
  };
  const auto port = free_port();
  Session session = Session::join(member(0, 2, port), options);
  {
    Session other = Session::join(member(1, 2, port), quick());
    *throwing = true;
  }  // its end is logged
  TestShard target(weight, Layout::replicated(), Rank{0});
  Catalog wanted(Rank{0}, 1);
  target.add_to(wanted);
  Restore restore = session.restore(wanted, within(patience));
  BOOST_CHECK_THROW(restore.wait(), CallersOwn);
  *throwing = false;
  session.close(10s);
}

BOOST_AUTO_TEST_CASE(what_a_log_sink_throws_at_the_end_of_a_restore_comes_out_of_the_next_wait) {
  SessionOptions options = quick();
  options.log = [](LogLevel, std::string_view text) {
    if (text.find(" is restored at step ") != std::string_view::npos) throw CallersOwn();
  };
  Alone job(options);
  job.session.restore(job.wanted(), within(patience)).wait();
  Restore next = job.session.restore(job.wanted(), within(patience));
  BOOST_CHECK_THROW(next.wait(), CallersOwn);
}

BOOST_AUTO_TEST_CASE(the_log_says_whom_a_restore_waits_for_and_how_it_ended) {
  std::promise<void> waits;
  std::vector<std::string> lines;  // of the loop's thread until the session ends
  SessionOptions options = quick();
  options.log = [&](LogLevel level, std::string_view text) {
    const bool first = level == LogLevel::info && text.starts_with("'state' as layout rank 0 has waited ") &&
                       text.ends_with(" s for member 0 to publish 'state'");
    if (first && std::ranges::none_of(lines, [](const auto& line) { return line == "waits"; })) {
      waits.set_value();
      lines.emplace_back("waits");
    }
    lines.emplace_back(text);
  };
  const auto port = free_port();
  Session holder = Session::join(member(0, 2, port), quick());
  {
    Session reader = Session::join(member(1, 2, port), options);
    TestShard target(weight, Layout::replicated(), Rank{0});
    Catalog wanted(Rank{0}, 1);
    target.add_to(wanted);
    Restore restore = reader.restore(wanted, within(patience));
    waits.get_future().wait();
    TestShard shard(weight, Layout::replicated(), Rank{0});
    shard.fill(1);
    Catalog held(Rank{0}, 1);
    shard.add_to(held);
    const Publication publication = holder.publish(held);
    restore.wait();
  }
  BOOST_TEST(std::ranges::count_if(lines, [](const std::string& line) {
               return line.starts_with("'state' as layout rank 0 is restored at step 0 after ");
             }) == 1);
}

BOOST_AUTO_TEST_CASE(empty_and_moved_from_handles_refuse_every_call) {
  Alone alone;
  Session moved = std::move(alone.session);
  BOOST_TEST((moved.valid() && !alone.session.valid()));
  BOOST_TEST(refused_as_invalid([&] { static_cast<void>(alone.session.rank()); }));
  BOOST_TEST(refused_as_invalid([&] { alone.session.allocate(1); }));
  BOOST_TEST(refused_as_invalid([&] { alone.session.restore(alone.wanted()); }));
  BOOST_TEST(refused_as_invalid([&] { alone.session.close(1s); }));
  Publication publication;
  BOOST_TEST(!publication.valid());
  BOOST_TEST(refused_as_invalid([&] { publication.retire(1s); }));
  Restore restore;
  BOOST_TEST(!restore.valid());
  BOOST_TEST(refused_as_invalid([&] { restore.wait(); }));
  BOOST_TEST(refused_as_invalid([&] { static_cast<void>(restore.poll()); }));
  BOOST_TEST(refused_as_invalid([&] { restore.cancel(); }));
  BOOST_TEST(refused_as_invalid([&] { static_cast<void>(restore.report()); }));
  BOOST_TEST(refused_as_invalid([&] { restore.on_progress({}); }));
  const Arena arena;
  BOOST_TEST(!arena.valid());
  BOOST_TEST(refused_as_invalid([&] { static_cast<void>(arena.data()); }));
  BOOST_TEST(refused_as_invalid([&] { static_cast<void>(arena.bytes()); }));
}

BOOST_AUTO_TEST_CASE(a_closed_session_allocates_nothing) {
  Alone alone;
  alone.publication.retire(10s);
  alone.session.close(10s);
  BOOST_TEST(refused_as_invalid([&] { alone.session.allocate(4096); }));
  alone.session.close(10s);  // closing again does nothing
}

BOOST_AUTO_TEST_CASE(arenas_are_aligned_and_zero) {
  Alone alone;
  const Arena arena = alone.session.allocate(100'000);
  BOOST_TEST(reinterpret_cast<std::uintptr_t>(arena.data()) % 64 == 0U);
  BOOST_TEST(std::ranges::all_of(arena.bytes(), [](std::byte one) { return one == std::byte{0}; }));
}

BOOST_AUTO_TEST_CASE(memory_that_cannot_be_read_is_not_published) {
  Alone alone;
  const Pages none(8192, PROT_NONE);
  PublishOptions options;
  options.name = "other";
  const Error error = failure_of([&] { alone.session.publish(catalog_at(none.data()), options); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument && says(error, "w:exp_avg")), error.what());
}

BOOST_AUTO_TEST_CASE(memory_that_ends_before_the_layout_does_is_not_published) {
  Alone alone;
  const Pages some(2 * 4096, PROT_READ | PROT_WRITE);
  BOOST_REQUIRE(::mprotect(static_cast<std::byte*>(some.data()) + 4096, 4096, PROT_NONE) == 0);
  PublishOptions options;
  options.name = "other";
  void* const late = static_cast<std::byte*>(some.data()) + 1024;  // the 4096 bytes from here extend past the end
  BOOST_TEST(refused_as_invalid([&] { alone.session.publish(catalog_at(late), options); }));
  alone.session.publish(catalog_at(some.data()), options);
}

BOOST_AUTO_TEST_CASE(memory_that_cannot_be_written_is_no_destination) {
  Alone alone;
  const Pages constant(8192, PROT_READ);
  const Error error = failure_of([&] { alone.session.restore(catalog_at(constant.data()), within(10s)); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument && says(error, "w:exp_avg") && says(error, "writable")),
             error.what());
}

BOOST_AUTO_TEST_CASE(what_lies_between_the_elements_of_a_view_may_be_out_of_reach) {
  Alone alone;
  const Pages three(3 * 4096, PROT_READ | PROT_WRITE);
  BOOST_REQUIRE(::mprotect(static_cast<std::byte*>(three.data()) + 4096, 4096, PROT_NONE) == 0);
  Catalog held(Rank{0}, 1);
  held.add({{"rows", "exp_avg"}, DType::f32, {2, 16}}, Layout::replicated(),
           View{.data = three.data(), .strides = {2048, 1}});
  PublishOptions options;
  options.name = "other";
  alone.session.publish(held, options);
}

BOOST_AUTO_TEST_CASE(threads_have_names) {
  Alone alone;
  BOOST_TEST(thread_names().contains("shardwire"));
}

BOOST_AUTO_TEST_CASE(a_forked_session_is_inert_and_its_handles_can_be_destroyed,
                     *boost::unit_test::precondition(can_fork)) {
  auto alone = std::make_unique<Alone>();
  Catalog wanted(Rank{0}, 1);
  alone->target.add_to(wanted);
  RestoreOptions options = within(patience);
  options.name = "nobody publishes this";
  auto running = std::make_unique<Restore>(alone->session.restore(wanted, options));
  auto arena = std::make_unique<Arena>(alone->session.allocate(1 << 20));
  const int status = in_child([&] {
    bool good = refused_as_invalid([&] { alone->session.restore(wanted, options); });
    good = good && refused_as_invalid([&] { alone->session.allocate(1); });
    good = good && refused_as_invalid([&] { running->wait(); });
    alone->session.close(1s);
    running.reset();
    arena.reset();
    alone.reset();
    return good;
  });
  BOOST_TEST(status == 0);
  running->cancel();
  BOOST_TEST((failure_of([&] { running->wait(); }).code() == ErrorCode::cancelled));
  alone->session.restore(alone->wanted(), within(patience)).wait();
  BOOST_TEST(alone->target.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_forked_session_has_no_thread_that_writes_files_or_serves_them,
                     *boost::unit_test::precondition(can_fork)) {
  const FakeRoot folder;
  const Environment environment(
      std::map<std::string, std::string>{{"SHARDWIRE_METRICS_FOLDER", folder.path.string()},
                                         {"SHARDWIRE_METRICS_PORT", std::to_string(free_port())},
                                         {"SHARDWIRE_TRACE", (folder.path / "trace.json").string()}});
  auto alone = std::make_unique<Alone>();
  const int status = in_child([&] {
    const bool good = refused_as_invalid([&] { alone->session.publish(alone->wanted()); });
    alone.reset();
    return good;
  });
  BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_CASE(a_child_does_not_inherit_arenas, *boost::unit_test::precondition(can_fork)) {
  Alone alone;
  const Arena arena = alone.session.allocate(1 << 20);
  arena.data()[0] = std::byte{1};
  const int status = in_child([&] {
    ::signal(SIGSEGV, SIG_DFL);
    ::signal(SIGBUS, SIG_DFL);
    return *const_cast<volatile std::byte*>(arena.data()) == std::byte{1};
  });
  BOOST_TEST((WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS)));
}

BOOST_AUTO_TEST_SUITE_END()
