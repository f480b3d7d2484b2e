// SPDX-License-Identifier: Apache-2.0
// Repeated restores of the same catalog reuse the first one's plan, but never outdated bytes.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>

#include "restore/parked_attempt.hpp"
#include "support/allocated_bytes.hpp"
#include "support/job.hpp"
#include "transport/transport.hpp"

BOOST_AUTO_TEST_SUITE(repeat)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int members = 3;

// One member's tensors, held by rows and wanted by columns, all in one arena or in ordinary memory.
class Member {
 public:
  Member(int rank, std::uint16_t port, int tensors, Extent rows, bool arenas)
      : rank_(rank), session_(Session::join(member(rank, members, port), tight())) {
    for (int i = 0; i < tensors; ++i) {
      const TensorSpec spec{{"w" + std::to_string(i), "exp_avg"}, DType::f32, {rows, 12}};
      held_.emplace_back(spec, Layout::chunk(0, members), Rank{rank});
      wanted_.emplace_back(spec, Layout::chunk(1, members), Rank{rank});
    }
    if (arenas) {
      for (TestShard& shard : held_) {
        arenas_.push_back(session_.allocate(shard.size_bytes()));
        shard.use(arenas_.back().data());
      }
    }
  }

  Session& session() { return session_; }
  void fill(std::uint64_t seed) {
    for (TestShard& shard : held_) shard.fill(seed);
  }
  void spoil() {
    for (TestShard& shard : wanted_) shard.fill(4711);
  }
  Catalog held(std::int64_t step) {
    Catalog catalog(Rank{rank_}, members);
    for (TestShard& shard : held_) shard.add_to(catalog);
    catalog.add_value({"", "step"}, step);
    return catalog;
  }
  Catalog wanted() {
    Catalog catalog(Rank{rank_}, members);
    for (TestShard& shard : wanted_) shard.add_to(catalog);
    catalog.add_value({"", "step"});
    return catalog;
  }
  void require_seed(std::uint64_t seed) {
    for (TestShard& shard : wanted_)
      require(shard.wrong(seed) == 0, "every element is of seed " + std::to_string(seed));
  }
  void meet(const std::string& name) { session_.gather(name, {}, patience); }
  void close() {
    meet("end");
    session_.close(10s);
  }

 private:
  int rank_;
  Session session_;
  std::vector<Arena> arenas_;
  std::vector<TestShard> held_;
  std::vector<TestShard> wanted_;
};

// `same`: the same catalog object each time, or an equal one.
void steps_follow_one_another(bool arenas, bool same, Extent rows, Verify verify) {
  const auto port = free_port();
  on_members(members, [&](int rank) {
    Member member(rank, port, 5, rows, arenas);
    const Catalog once = member.wanted();
    std::optional<ByteCount> moved;
    for (std::int64_t step = 1; step <= 4; ++step) {
      const auto seed = static_cast<std::uint64_t>(step);
      member.fill(seed);
      member.spoil();
      Publication publication = member.session().publish(member.held(step), {.step = step});
      member.meet("published " + std::to_string(step));
      for (int again = 0; again < 2; ++again) {
        member.spoil();
        RestoreOptions options = tight_within(patience);
        options.step = step;
        options.verify = verify;
        Restore restore = member.session().restore(same ? once : member.wanted(), options);
        restore.wait();
        member.require_seed(seed);
        require(restore.value({"", "step"}) == Value(step), "the step is the new one");
        const RestoreReport& report = restore.report();
        require(report.moved_bytes + report.local_bytes == report.needed_bytes + report.overread_bytes,
                "every byte moved once");
        require(report.moved_bytes == moved.value_or(report.moved_bytes), "as many bytes as the first time");
        require(report.staging_peak_bytes <= report.staging_budget_bytes, "staging stayed within its budget");
        moved = report.moved_bytes;
      }
      member.meet("restored " + std::to_string(step));
      publication.retire(10s);
    }
    member.close();
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(small_steps_of_the_same_catalog_follow_one_another) {
  steps_follow_one_another(true, true, 40, Verify::generation);
}

BOOST_AUTO_TEST_CASE(large_steps_of_the_same_catalog_follow_one_another) {
  steps_follow_one_another(true, true, 60'000, Verify::generation);
}

BOOST_AUTO_TEST_CASE(catalogs_that_are_alike_count_as_one) {
  steps_follow_one_another(true, false, 40, Verify::digest);
}

BOOST_AUTO_TEST_CASE(ordinary_memory_is_published_again_and_again) {
  steps_follow_one_another(false, true, 500, Verify::digest);
}

BOOST_AUTO_TEST_CASE(a_catalog_with_other_memory_or_one_tensor_more_is_no_repetition) {
  const auto port = free_port();
  on_members(members, [&](int rank) {
    Member member(rank, port, 3, 40, true);
    member.fill(1);
    Publication publication = member.session().publish(member.held(1));
    member.meet("published");
    member.spoil();
    member.session().restore(member.wanted(), tight_within(patience)).wait();
    member.require_seed(1);
    const TensorSpec spec{{"w1", "exp_avg"}, DType::f32, {40, 12}};
    TestShard elsewhere(spec, Layout::chunk(1, members), Rank{rank});
    TestShard rows(spec, Layout::chunk(0, members), Rank{rank});
    for (int again = 0; again < 2; ++again) {
      for (TestShard* shard : {&elsewhere, &rows}) {
        shard->fill(99);
        Catalog other(Rank{rank}, members);
        shard->add_to(other);
        Restore restore = member.session().restore(other, tight_within(patience));
        restore.wait();
        require(shard->wrong(1) == 0, "the other memory is filled");
        require(!restore.has_value({"", "step"}), "nothing comes along that was not wanted");
      }
    }
    member.meet("restored");
    publication.retire(10s);
    member.close();
  });
}

BOOST_AUTO_TEST_CASE(a_source_that_has_gone_fails_the_repetition) {
  const auto port = free_port();
  on_members(members, [&](int rank) {
    Member member(rank, port, 3, 40, true);
    member.fill(1);
    Publication publication = member.session().publish(member.held(1));
    member.meet("published");
    const Catalog wanted = member.wanted();
    if (rank != 2) member.session().restore(wanted, tight_within(patience)).wait();
    member.meet("restored");
    if (rank == 2) publication.retire(10s);
    member.meet("retired");
    if (rank != 2) {
      const Error error = failure_of([&] { member.session().restore(wanted, tight_within(2s)).wait(); });
      require(error.code() == ErrorCode::layout_mismatch || error.code() == ErrorCode::timed_out ||
                  error.code() == ErrorCode::withdrawn,
              std::string("what is gone is missed: ") + error.what());
    }
    member.meet("seen");
    publication.retire(10s);
    member.close();
  });
}

// Allocations do not depend on the number of pieces or tensors: only messages and handles of one restore count.
BOOST_AUTO_TEST_CASE(what_a_repetition_allocates_does_not_grow_with_the_state) {
  const auto allocated = [](int tensors, Extent rows) {
    std::atomic<std::uint64_t> most = 0;
    const auto port = free_port();
    on_members(members, [&](int rank) {
      Member member(rank, port, tensors, rows, true);
      member.fill(1);
      Publication publication = member.session().publish(member.held(1));
      const Catalog wanted = member.wanted();
      for (int again = 0; again < 4; ++again) {
        member.meet("before " + std::to_string(again));
        const std::uint64_t before = allocated_bytes();
        member.session().restore(wanted, tight_within(patience)).wait();
        member.meet("after " + std::to_string(again));
        if (again == 3) most = std::max<std::uint64_t>(most, allocated_bytes() - before);
      }
      member.require_seed(1);
      publication.retire(10s);
      member.close();
    });
    return most.load();
  };
  const std::uint64_t few = allocated(2, 600);
  const std::uint64_t large = allocated(2, 60'000);
  BOOST_TEST_MESSAGE(few << " and " << large << " bytes, all members together");
  if (maps_arenas()) BOOST_TEST(large < few + (256u << 10));
  BOOST_TEST(few < (512u << 10));
}

// A session's thread polls thousands of times for each message.
BOOST_AUTO_TEST_CASE(asking_a_fabric_that_has_nothing_allocates_nothing) {
  for (const transport::Transport* row : transport::select(transport_under_test())) {
    const std::unique_ptr<transport::Fabric> fabric = row->open();
    fabric->progress();
    const std::uint64_t before = allocated_bytes();
    for (int i = 0; i < 100; ++i) fabric->progress();
    BOOST_TEST(allocated_bytes() == before, row->name);
  }
}

// The owner may have freed the memory; only a lease makes the source ask the driver.
BOOST_AUTO_TEST_CASE(memory_of_a_device_is_read_with_a_lease_alone) {
  for (const Method method : {Method::mapped, Method::read}) {
    for (const MemoryKind kind : {MemoryKind::host, MemoryKind::cuda}) {
      move::Transfer transfer;
      transfer.method = method;
      const Catalog wanted(Rank{0}, 1);
      const restore::ParkedAttempt earlier{
          .from = "state",
          .wanted = {std::make_shared<const Catalog>(wanted), nullptr, restore::ValueScope::none},
          .places = {},
          .chosen = {std::make_shared<const std::vector<move::Transfer>>(1, transfer), {}, {}}};
      std::vector<restore::Binding> bindings(1);
      bindings.front().tensors = {0};
      bindings.front().handles = {{.tensor = 0, .region = 0}};
      bindings.front().regions.resize(1);
      bindings.front().regions.front().place = transport::MemoryPlace{kind, kind == MemoryKind::cuda ? 0 : -1};
      const auto leasing = restore::leasing_of(earlier, std::vector<const restore::Binding*>{&bindings.front()},
                                               Verify::generation, std::nullopt, wanted);
      BOOST_TEST(
          (leasing == (kind == MemoryKind::host ? restore::Source::Leasing::none : restore::Source::Leasing::first)));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
