// SPDX-License-Identifier: Apache-2.0
// Owners of memory (View::owner): who keeps them, until when, and where they are destroyed.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(owners)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr Extent elements = 1 << 16;

TensorSpec spec() {
  return {{"w", "exp_avg"}, DType::f32, {elements}};
}

/// Memory of one tensor that says on which thread it is freed.
class Memory {
 public:
  Memory() {
    // Owners: this and the memory, which may be freed later.
    const auto freed = std::make_shared<std::promise<std::thread::id>>();
    future_ = freed->get_future().share();
    owner_ = std::shared_ptr<std::vector<float>>(new std::vector<float>(elements), [freed](auto* memory) {
      delete memory;
      freed->set_value(std::this_thread::get_id());
    });
  }
  /// A catalog that alone owns the memory from now on.
  Catalog give() {
    Catalog catalog(Rank{0}, 1);
    View view = shardwire::view(*owner_);
    view.owner = std::exchange(owner_, nullptr);
    catalog.add(spec(), Layout::replicated(), view);
    return catalog;
  }
  bool is_freed() { return future_.wait_for(0s) == std::future_status::ready; }
  std::thread::id freed_on() { return future_.get(); }

 private:
  std::shared_future<std::thread::id> future_;
  std::shared_ptr<std::vector<float>> owner_;
};

struct Pair {
  Pair() {
    const auto port = free_port();
    source.emplace(Session::join(member(0, 2, port), watching()));
    reader.emplace(Session::join(member(1, 2, port), watching()));
  }
  // Its log sink tells on which thread a session runs.
  SessionOptions watching() {
    SessionOptions options = quick();
    options.log = [this](LogLevel, std::string_view) {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    };
    return options;
  }
  std::mutex mutex;
  std::set<std::thread::id> threads;  // guarded by mutex
  std::optional<Session> source;
  std::optional<Session> reader;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_catalog_and_its_copies_keep_the_owners) {
  Memory memory;
  {
    const Catalog copy = [&] {
      const Catalog catalog = memory.give();
      BOOST_TEST(catalog.without_owners().owners() == nullptr);
      BOOST_TEST(catalog.same(catalog.without_owners()));
      return catalog;
    }();
    BOOST_TEST(!memory.is_freed());
  }
  BOOST_TEST(memory.is_freed());
}

BOOST_AUTO_TEST_CASE(a_publication_keeps_its_owners_until_it_is_retired) {
  Pair pair;
  Memory memory;
  Publication publication = pair.source->publish(memory.give());
  BOOST_TEST(!memory.is_freed());
  publication.retire(patience);
  BOOST_TEST((memory.freed_on() != std::this_thread::get_id()));
}

BOOST_AUTO_TEST_CASE(a_snapshot_keeps_no_owners) {
  Pair pair;
  Memory memory;
  const Publication publication = pair.source->publish(memory.give(), {.snapshot = Snapshot::copy});
  BOOST_TEST(memory.is_freed());
}

BOOST_AUTO_TEST_CASE(an_update_releases_the_owners_of_the_old_generation_only) {
  Pair pair;
  Memory old, fresh;
  Publication publication = pair.source->publish(old.give());
  publication.update(fresh.give(), 1, Snapshot::none, patience);
  old.freed_on();
  BOOST_TEST(!fresh.is_freed());
  publication.retire(patience);
  fresh.freed_on();
}

BOOST_AUTO_TEST_CASE(a_publication_that_is_let_go_keeps_its_owners_while_a_reader_holds_a_lease) {
  Pair pair;
  Memory held, wanted;
  std::optional<Publication> publication = pair.source->publish(held.give());
  RestoreOptions slow = within(patience);
  slow.ingress_bytes_per_second = 1 << 10;
  std::optional<Restore> restore = pair.reader->restore(wanted.give(), slow);
  std::promise<void> moving;
  auto moves = moving.get_future();
  restore->on_progress(
      [&moving, once = false](const Progress& progress) mutable {
        if (progress.done_bytes > 0 && !std::exchange(once, true)) moving.set_value();
      },
      5ms);
  moves.wait();
  BOOST_TEST(!wanted.is_freed());
  restore->cancel();
  publication.reset();
  held.freed_on();
  BOOST_TEST(!wanted.is_freed());  // the restore can be resumed
  restore.reset();
  wanted.freed_on();
}

BOOST_AUTO_TEST_CASE(a_restore_keeps_its_owners_until_it_has_ended_though_its_result_is_cached) {
  Pair pair;
  Memory held, wanted;
  const Publication publication = pair.source->publish(held.give());
  Restore restore = pair.reader->restore(wanted.give(), within(patience));
  restore.wait();
  BOOST_TEST((wanted.freed_on() != std::this_thread::get_id()));
  BOOST_TEST(!held.is_freed());
}

BOOST_AUTO_TEST_CASE(an_exchange_that_was_started_keeps_the_owners_of_both_catalogs) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Memory held, wanted;
    Session session = Session::join(member(rank, 2, port), quick());
    Catalog nothing(Rank{0}, 1);
    Exchange exchange =
        rank == 0 ? session.start_exchange(held.give(), nothing) : session.start_exchange(nothing, wanted.give());
    exchange.wait();
    rank == 0 ? held.freed_on() : wanted.freed_on();
    if (rank == 0) wanted.give();
    if (rank == 1) held.give();
    session.gather("over", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(owners_are_destroyed_on_no_thread_of_a_session) {
  Pair pair;
  Memory held, wanted;
  Publication publication = pair.source->publish(held.give());
  Restore restore = pair.reader->restore(wanted.give(), within(patience));
  restore.wait();
  publication.retire(patience);
  const auto first = held.freed_on(), second = wanted.freed_on();
  pair.source.reset();
  pair.reader.reset();
  BOOST_TEST(!pair.threads.contains(first));
  BOOST_TEST(!pair.threads.contains(second));
}

BOOST_AUTO_TEST_SUITE_END()
