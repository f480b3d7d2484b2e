// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cmath>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(restore)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

struct Tensor {
  TensorSpec spec;
  Layout from;
  Layout to;
};

std::vector<Tensor> adam(int ranks) {
  const Layout chunk = Layout::chunk(0, ranks);
  const Layout col = Layout::mesh({ranks / 2, 2}, {Shard{0}, Shard{1}});
  const Layout row = Layout::mesh({ranks / 2, 2}, {StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first);
  return {{{{"w1", "exp_avg"}, DType::f32, {37, 20}}, chunk, col},
          {{{"w2", "exp_avg"}, DType::bf16, {64, 9}}, chunk, row},
          {{{"norm", "exp_avg"}, DType::f64, {11}}, chunk, Layout::replicated()},
          {{{"w1", "blocks"}, opaque(24), {37, 20}}, chunk, col},
          {{{"w2", "codes"}, opaque(3), {64, 9}}, chunk, row},
          {{{"w2", "pages"}, opaque(4096), {9, 3}}, chunk, Layout::packed(col)},
          {{{"phase", "exp_avg"}, DType::complex128, {13}}, chunk, Layout::replicated()},
          {{{"empty", "exp_avg"}, DType::f32, {0, 4}}, chunk, chunk}};
}

// Runs one member of a job in which member i is layout rank i of both layouts.
void member_restores(int rank, int members, std::uint16_t port, bool arenas, Snapshot snapshot, Verify verify) {
  Session session = Session::join(member(rank, members, port), tight());
  std::vector<TestShard> held;
  std::vector<TestShard> wanted;
  Catalog source(Rank{rank}, members);
  Catalog target(Rank{rank}, members);
  std::vector<Arena> memory;
  for (const Tensor& tensor : adam(members)) {
    held.emplace_back(tensor.spec, tensor.from, Rank{rank});
    wanted.emplace_back(tensor.spec, tensor.to, Rank{rank});
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (arenas) {
      memory.push_back(session.allocate(held[i].size_bytes()));
      held[i].use(memory.back().data());
    }
    held[i].fill(i + 1);
    held[i].add_to(source);
    wanted[i].add_to(target);
  }
  const Value scheduler(ValueMap{{"last_epoch", 7}, {"betas", ValueTuple{{0.9, 0.95}}}, {"lrs", ValueList{{0.1}}}});
  source.add_value({"", "step"}, std::int64_t{7});
  source.add_value({"", "scheduler"}, scheduler);
  target.add_value({"", "step"});
  target.add_value({"", "scheduler"});
  Publication publication = session.publish(source, {.name = "state", .step = 7, .snapshot = snapshot});
  if (snapshot == Snapshot::copy) {
    for (TestShard& shard : held) shard.fill(99);  // training continues
  }
  RestoreOptions options = tight_within(patience);
  options.verify = verify;
  Restore restore = session.restore(target, options);
  restore.wait();
  for (std::size_t i = 0; i < wanted.size(); ++i) require(wanted[i].wrong(i + 1) == 0, "every element arrived");
  require(restore.value({"", "step"}) == Value(std::int64_t{7}), "the step travelled");
  require(restore.value({"", "scheduler"}) == scheduler, "the map travelled, a tuple in it as a tuple");
  const RestoreReport& report = restore.report();
  require(report.moved_bytes + report.local_bytes == report.needed_bytes + report.overread_bytes,
          "every byte moved once");
  const bool direct = reads_arenas() && (arenas || snapshot == Snapshot::copy);
  require(report.methods[Method::mapped].bytes == (direct && maps_arenas() ? report.moved_bytes : 0),
          "arenas were mapped");
  const ByteCount sent = report.methods[Method::packed].bytes + report.methods[Method::zcopy].bytes;
  require(sent == (direct || reads_ordinary_memory() ? 0 : report.moved_bytes), "other memory was read, or sent");
  require(report.staging_peak_bytes <= report.staging_budget_bytes, "staging stayed within its budget");
  const StageSeconds& s = report.seconds;
  const double sum = s.join + s.plan + s.bind + s.move + s.verify + s.commit;
  require(std::abs(sum - s.wall) <= 0.02 * s.wall, "the stages sum to the wall time");
  ByteCount from_peers = 0;
  for (const PeerReport& peer : report.peers) {
    from_peers += peer.bytes;
    require(peer.measured_seconds > 0 && peer.measured_seconds <= s.move, "bytes of a source came while bytes moved");
  }
  require(from_peers == report.moved_bytes + report.local_bytes, "every byte came from a source");
  session.gather("done", {}, patience);
  publication.retire(10s);
  session.close(10s);
}

}  // namespace

BOOST_AUTO_TEST_CASE(members_pull_what_they_lack_from_arenas) {
  const auto port = free_port();
  on_members(4, [&](int rank) { member_restores(rank, 4, port, true, Snapshot::none, Verify::generation); });
}

BOOST_AUTO_TEST_CASE(ordinary_memory_is_read_or_goes_through_small_slots) {
  const auto port = free_port();
  on_members(4, [&](int rank) { member_restores(rank, 4, port, false, Snapshot::none, Verify::generation); });
}

BOOST_AUTO_TEST_CASE(a_snapshot_keeps_the_published_bytes_while_training_goes_on) {
  const auto port = free_port();
  on_members(4, [&](int rank) { member_restores(rank, 4, port, false, Snapshot::copy, Verify::generation); });
}

BOOST_AUTO_TEST_CASE(a_new_arena_is_not_taken_for_one_that_is_gone) {
  // A reader keeps its mappings; the next snapshot may reuse the address and the descriptor of the last one.
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {1000}};
    for (std::uint64_t step = 1; step <= 4; ++step) {
      TestShard shard(spec, Layout::replicated(), Rank{0});
      Catalog catalog(Rank{0}, 1);
      shard.add_to(catalog);
      Publication publication;
      if (rank == 0) {
        shard.fill(step);
        publication = session.publish(
            catalog, {.name = "state", .step = static_cast<std::int64_t>(step), .snapshot = Snapshot::copy});
      } else {
        RestoreOptions options = tight_within(patience);
        options.step = static_cast<std::int64_t>(step);
        session.restore(catalog, options).wait();
        require(shard.wrong(step) == 0, "the bytes are those of step " + std::to_string(step));
      }
      session.gather("read " + std::to_string(step), {}, 20s);
      if (rank == 0) publication.retire(10s);
    }
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(values_that_need_not_agree_come_from_one_rank) {
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), quick());
    const TensorKey random{"", "rng"};
    const TensorKey note{"", "note"};
    Catalog held(Rank{rank}, 3);
    if (rank < 2) held.add_value(random, std::int64_t{rank});
    held.add_value(note, std::string("of rank ") + std::to_string(rank));
    const Publication publication = session.publish(held);
    session.gather("published", {}, patience);  // who is slow to publish is not left out after the grace
    const auto wanted = [&](Absent absent, Agree agree) {
      Catalog catalog(Rank{rank}, 3);
      catalog.add_value(random, {}, absent, agree);
      catalog.add_value(note, {}, Absent::error, Agree::any);
      return catalog;
    };

    Restore own = session.restore(wanted(Absent::skip, Agree::per_rank), within(patience));
    own.wait();
    require(own.value(note) == Value(std::string("of rank 0")), "the lowest rank gives a value that any may give");
    require(own.has_value(random) == (rank < 2), "rank 2 has published no state");
    if (rank < 2) require(own.value(random) == Value(std::int64_t{rank}), "each rank has its own state back");
    if (rank == 2) require(own.report().skipped == std::vector<TensorKey>{random}, "the policy of absence applies");

    if (rank < 2) {  // fetches the values of one source
      Catalog state(Rank{rank}, 3);
      state.add_value(random, {}, Absent::error, Agree::per_rank);
      Restore alone = session.restore(state, within(patience));
      alone.wait();
      require(alone.value(random) == Value(std::int64_t{rank}), "each rank has its own state back, without others");
    }

    Restore any = session.restore(wanted(Absent::skip, Agree::any), within(patience));
    any.wait();
    require(any.value(random) == Value(std::int64_t{0}), "another policy selects anew");
    Restore agreed = session.restore(wanted(Absent::skip, Agree::authoritative), within(patience));
    require(says(failure_of([&] { agreed.wait(); }), ":rng: the ranks"), "without a policy ranks have to agree");
    if (rank == 2) {
      Restore required = session.restore(wanted(Absent::error, Agree::per_rank), within(patience));
      const Error error = failure_of([&] { required.wait(); });
      require(error.code() == ErrorCode::layout_mismatch && says(error, "source rank 2 has no :rng"), error.what());
    }
    session.gather("done", {}, patience);
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(digests_agree_after_an_undisturbed_restore) {
  const auto port = free_port();
  on_members(4, [&](int rank) { member_restores(rank, 4, port, true, Snapshot::none, Verify::digest); });
}

BOOST_AUTO_TEST_SUITE_END()
