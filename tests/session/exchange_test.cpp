// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <barrier>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(exchange)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

// A tensor of a job, and the positions of its local buffers in each member's arena on either side.
struct Placed {
  TensorSpec spec;
  Layout from;
  Layout to;
  std::vector<std::size_t> from_at;  // bytes, indexed by member; unused where the member holds nothing
  std::vector<std::size_t> to_at;
};

std::size_t local_bytes(const TensorSpec& spec, const Layout& layout, int rank) {
  return static_cast<std::size_t>(static_cast<ByteCount>(layout.local_elements(spec.shape, Rank{rank})) *
                                  item_size(spec.dtype));
}

TensorSpec named(const std::string& fqn, const Extents& shape, DType dtype = DType::f32) {
  return {{fqn, "exp_avg"}, dtype, shape};
}

struct Outcome {
  RestoreReport report;
  bool good = false;
};

// Exchanges in one buffer per member. `in_arena`: peers can map it. Checks every wanted byte, and that no other byte of
// the buffer changes.
Outcome exchange_in_place(Session& session, const std::vector<Placed>& tensors, std::size_t room, int members,
                          bool in_arena, const ExchangeOptions& options) {
  const int rank = session.rank();
  const Arena arena = session.allocate(in_arena ? room : 0);
  std::vector<std::byte> own(in_arena ? 0 : room);
  std::byte* const memory = in_arena ? arena.data() : own.data();
  std::fill(memory, memory + room, std::byte{0x5a});
  Catalog held(Rank{rank}, members);
  Catalog wanted(Rank{rank}, members);
  std::vector<TestShard> targets;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TestShard source(tensors[i].spec, tensors[i].from, Rank{rank});
    source.use(memory + tensors[i].from_at[static_cast<std::size_t>(rank)]);
    source.fill(i + 1);
    source.add_to(held);
    targets.emplace_back(tensors[i].spec, tensors[i].to, Rank{rank});
    targets.back().use(memory + tensors[i].to_at[static_cast<std::size_t>(rank)]);
    targets.back().add_to(wanted);
  }
  held.add_value({"", "step"}, std::int64_t{11});
  wanted.add_value({"", "step"});
  held.add_value({"", "rng"}, std::int64_t{rank});
  wanted.add_value({"", "rng"}, {}, Absent::error, Agree::per_rank);
  std::vector<std::byte> expected(memory, memory + room);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TestShard target(tensors[i].spec, tensors[i].to, Rank{rank});
    target.use(expected.data() + tensors[i].to_at[static_cast<std::size_t>(rank)]);
    target.fill(i + 1);
  }
  const ExchangeResult result = session.exchange(held, wanted, options);
  Outcome outcome{result.report, true};
  for (std::size_t i = 0; i < tensors.size(); ++i) outcome.good = outcome.good && targets[i].wrong(i + 1) == 0;
  outcome.good = outcome.good && std::equal(expected.begin(), expected.end(), memory);
  require(result.values.at({"", "step"}) == Value(std::int64_t{11}), "the step travelled");
  require(result.values.at({"", "rng"}) == Value(std::int64_t{rank}), "each rank has its own state");
  return outcome;
}

// Packs the tensors one after the other on each side; targets begin `shift` bytes after the start.
std::size_t pack(std::vector<Placed>& tensors, int members, std::size_t shift) {
  std::size_t room = 0;
  for (Placed& tensor : tensors)
    tensor.from_at = tensor.to_at = std::vector<std::size_t>(static_cast<std::size_t>(members));
  for (int rank = 0; rank < members; ++rank) {
    std::size_t from = 0;
    std::size_t to = shift;
    for (Placed& tensor : tensors) {
      tensor.from_at[static_cast<std::size_t>(rank)] = from;
      tensor.to_at[static_cast<std::size_t>(rank)] = to;
      from += local_bytes(tensor.spec, tensor.from, rank);
      to += local_bytes(tensor.spec, tensor.to, rank);
    }
    room = std::max({room, from, to});
  }
  return room;
}

std::vector<Placed> layers(int count, int members) {
  std::vector<Placed> tensors;
  const Layout rows = Layout::chunk(0, members);
  const Layout columns = Layout::chunk(1, members);
  for (int i = 0; i < count; ++i) {
    const std::string name = "layers." + std::to_string(i);
    tensors.push_back({named(name + ".up", {48, 36}), rows, columns, {}, {}});
    tensors.push_back({named(name + ".down", {30, 44}, DType::bf16), rows, columns, {}, {}});
    tensors.push_back({named(name + ".norm", {13}), rows, Layout::chunk(0, 3), {}, {}});
  }
  return tensors;
}

ExchangeOptions with(ByteCount staging_bytes, Verify verify = Verify::generation) {
  ExchangeOptions options;
  options.timeout = 60s;
  options.staging_bytes = staging_bytes;
  options.verify = verify;
  return options;
}

void check_report(const RestoreReport& report) {
  require(report.moved_bytes + report.local_bytes == report.needed_bytes + report.overread_bytes,
          "every byte moved once");
  require(report.staging_peak_bytes <= report.staging_budget_bytes, "staging stayed within its budget");
  ByteCount by_method = 0;
  report.methods.each([&](Method, const MethodReport& row) {
    by_method += row.bytes;
    require(row.bytes == 0 || (row.runs > 0 && row.predicted_seconds > 0), "every method that was used has its costs");
  });
  require(by_method == report.moved_bytes + report.local_bytes, "every byte went by a method");
  const StageSeconds& s = report.seconds;
  const double sum = s.join + s.plan + s.bind + s.move + s.verify + s.commit;
  require(std::abs(sum - s.wall) <= 0.02 * s.wall, "the stages sum to the wall time");
}

// The same exchange on `members` members.
void all_exchange(int members, const std::vector<Placed>& tensors, std::size_t room, ExchangeOptions options) {
  for (const bool in_arena : {true, false}) {
    const auto port = free_port();
    on_members(members, [&](int rank) {
      Session session = Session::join(member(rank, members, port), tight());
      const Outcome outcome = exchange_in_place(session, tensors, room, members, in_arena, options);
      require(outcome.good, "every byte is as expected");
      check_report(outcome.report);
      const bool digested = options.verify == Verify::digest && outcome.report.moved_bytes > 0;
      require(!digested || outcome.report.digest_seconds > 0, "digests cost what they cost");
      session.close(10s);
    });
  }
}

/// Forces the method of all exchanges during its lifetime; null: the library chooses.
class ForcedMethod {
 public:
  explicit ForcedMethod(const char* method) {
    if (const char* value = std::getenv(name)) before_ = value;
    set(method);
  }
  ~ForcedMethod() { set(before_ ? before_->c_str() : nullptr); }
  ForcedMethod(const ForcedMethod&) = delete;
  ForcedMethod& operator=(const ForcedMethod&) = delete;
  static void set(const char* method) { method == nullptr ? ::unsetenv(name) : ::setenv(name, method, 1); }

 private:
  static constexpr const char* name = "SHARDWIRE_METHOD";
  std::optional<std::string> before_;
};

void check_collective(const RestoreReport& report) {
  check_report(report);
  require(report.methods[Method::collective].bytes == report.moved_bytes, "all that crossed went in rounds");
  require(report.moved_bytes == 0 || report.rounds > 0, "there were rounds");
  for (const PeerReport& peer : report.peers) {
    require(peer.path == "local" || peer.path == "loopback/collective", "paths are of rounds: " + peer.path);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(bytes_go_in_rounds_where_that_is_forced) {
  const ForcedMethod collective("collective");
  constexpr int members = 4;
  std::vector<Placed> tensors = layers(4, members);
  const std::size_t room = pack(tensors, members, 0);
  for (const Verify verify : {Verify::generation, Verify::digest}) {
    for (const ByteCount staging : {ByteCount{96} << 10, ByteCount{1} << 20}) {
      const auto port = free_port();
      on_members(members, [&](int rank) {
        Session session = Session::join(member(rank, members, port), tight());
        const Outcome outcome =
            exchange_in_place(session, tensors, room, members, rank % 2 == 0, with(staging, verify));
        require(outcome.good, "every byte is as expected");
        check_collective(outcome.report);
        require(verify == Verify::generation || outcome.report.digest_seconds > 0, "digests cost what they cost");
        session.close(10s);
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(a_process_that_is_told_so_goes_in_rounds_from_the_next_exchange_on_and_can_go_back) {
  const ForcedMethod none(nullptr);
  std::vector<Placed> tensors = layers(1, 3);
  const std::size_t room = pack(tensors, 3, 0);
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    const auto exchanged = [&] { return exchange_in_place(session, tensors, room, 3, true, with(1 << 20)); };
    const Outcome before = exchanged();
    require(before.good && before.report.rounds == 0, "nothing goes in rounds unasked");
    session.gather("before", {}, 10s);
    if (rank == 0) ForcedMethod::set("collective");
    session.gather("set", {}, 10s);
    const Outcome outcome = exchanged();
    require(outcome.good, "every byte is as expected");
    check_collective(outcome.report);
    session.gather("after", {}, 10s);
    if (rank == 0) ForcedMethod::set(nullptr);
    session.gather("unset", {}, 10s);
    const Outcome again = exchanged();
    require(again.good && again.report.rounds == 0, "and back");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(one_member_that_asks_for_rounds_brings_all_into_them) {
  const ForcedMethod none(nullptr);
  std::vector<Placed> tensors = layers(1, 3);
  const std::size_t room = pack(tensors, 3, 0);
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    ExchangeOptions options = with(1 << 20);
    if (rank == 1) options.method = ExchangeMethod::collective;
    const Outcome outcome = exchange_in_place(session, tensors, room, 3, true, options);
    require(outcome.good, "every byte is as expected");
    check_collective(outcome.report);
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(a_member_that_leaves_before_the_rounds_ends_them_for_all_in_time) {
  const ForcedMethod collective("collective");
  std::vector<Placed> tensors = layers(2, 3);
  const std::size_t room = pack(tensors, 3, 0);
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    ExchangeOptions options = with(1 << 20);
    options.timeout = 3s;
    session.gather("all here", {}, 10s);
    if (rank == 2) return;  // does not take part
    const auto began = std::chrono::steady_clock::now();
    const Error error = failure_of([&] { exchange_in_place(session, tensors, room, 3, true, options); });
    require(error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::timed_out, error.what());
    require(std::chrono::steady_clock::now() - began < promptly, "in time");
  });
}

BOOST_AUTO_TEST_CASE(rows_become_columns_in_the_same_memory_on_all_members) {
  auto tensors = layers(6, 4);
  const std::size_t room = pack(tensors, 4, 0);
  all_exchange(4, tensors, room, with(64 << 10));
}

BOOST_AUTO_TEST_CASE(digests_are_compared_before_anything_is_overwritten) {
  auto tensors = layers(3, 4);
  const std::size_t room = pack(tensors, 4, 0);
  all_exchange(4, tensors, room, with(16 << 10, Verify::digest));
}

BOOST_AUTO_TEST_CASE(a_partial_overlap_shifted_by_some_bytes_is_no_trouble) {
  auto tensors = layers(4, 3);
  const std::size_t room = pack(tensors, 3, 300);
  all_exchange(3, tensors, room, with(24 << 10));
}

BOOST_AUTO_TEST_CASE(destination_memory_apart_from_the_source_needs_no_staging) {
  auto tensors = layers(2, 3);
  const std::size_t half = pack(tensors, 3, 0);
  const std::size_t room = pack(tensors, 3, half);
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    const Outcome outcome = exchange_in_place(session, tensors, room, 3, true, with(64));
    require(outcome.good, "every byte is as expected");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(two_tensors_that_swap_their_memory_fit_into_staging_for_one) {
  const Layout rows = Layout::chunk(0, 2);
  std::vector<Placed> tensors{{named("a", {40, 10}), rows, rows, {}, {}}, {named("b", {40, 10}), rows, rows, {}, {}}};
  const std::size_t room = pack(tensors, 2, 0);
  std::swap(tensors[0].to_at, tensors[1].to_at);
  all_exchange(2, tensors, room, with(4 * 800 / 3 + 4));  // three quarters are for parts of 800 bytes each
}

BOOST_AUTO_TEST_CASE(a_tensor_larger_than_the_staging_goes_in_slices) {
  // Growing shards: each member's rows begin at the same address, with a few more rows each.
  std::vector<Placed> tensors{{named("w", {192, 64}), Layout::chunk(0, 4), Layout::chunk(0, 3), {}, {}}};
  const std::size_t room = pack(tensors, 4, 0);
  const std::size_t largest = 192 / 3 * 64 * 4;
  all_exchange(4, tensors, room, with(largest / 2));
}

BOOST_AUTO_TEST_CASE(too_small_a_budget_is_refused_on_every_member_before_anything_is_written) {
  // Each tensor lies on both: neither can be written before the other is read, however they are sliced.
  const Layout columns = Layout::chunk(1, 2);
  const Layout rows = Layout::chunk(0, 2);
  const TensorSpec spec = named("w", {64, 64});
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    TestShard source(spec, rows, Rank{rank});
    source.fill(1);
    Catalog held(Rank{rank}, 2);
    source.add_to(held);
    Catalog wanted(Rank{rank}, 2);
    wanted.add(spec, columns, View{.data = source.data()});
    const Error error = failure_of([&] { session.exchange(held, wanted, with(400)); });
    require(error.code() == ErrorCode::out_of_resources, error.what());
    for (const char* part : {"w:exp_avg", "8192", "400"}) require(says(error, part), error.what());
    require(source.wrong(1) == 0, "nothing was written");
    // The session still works, and the same exchange succeeds with enough staging.
    TestShard target(spec, columns, Rank{rank});
    target.use(source.data());
    session.exchange(held, wanted, with(64 << 10));
    require(target.wrong(1) == 0, "every element arrived");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(members_with_different_budgets_agree_on_one_order) {
  // Six tensors move on by one layout rank each, across members. Planning alone, each member would choose other waves.
  const Layout from = Layout::chunk(0, 2);
  const Layout to = Layout::boxes({{Rank{0}, {Box{{20, 0}, {20, 10}}}}, {Rank{1}, {Box{{0, 0}, {20, 10}}}}});
  std::vector<Placed> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back({named(std::to_string(i), {40, 10}), from, to, {}, {}});
  const std::size_t room = pack(tensors, 2, 0);
  for (std::size_t i = 0; i < 6; ++i) tensors[i].to_at = std::vector<std::size_t>(2, (i + 1) % 6 * 800);
  for (const ByteCount small : {1200, 2200, 3300}) {
    for (const ByteCount large : {4400, 5500, 64 << 10}) {
      for (const bool in_arena : {true, false}) {
        const auto port = free_port();
        on_members(2, [&](int rank) {
          Session session = Session::join(member(rank, 2, port), tight());
          const ByteCount budget = (rank == 0) == in_arena ? small : large;
          const Outcome outcome = exchange_in_place(session, tensors, room, 2, in_arena, with(budget));
          require(outcome.good, "every byte is as expected");
          check_report(outcome.report);
          session.close(10s);
        });
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_smallest_budget_decides_and_is_named) {
  const TensorSpec spec = named("w", {64, 64});
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    TestShard source(spec, Layout::chunk(0, 2), Rank{rank});
    source.fill(1);
    Catalog held(Rank{rank}, 2);
    source.add_to(held);
    Catalog wanted(Rank{rank}, 2);
    wanted.add(spec, Layout::chunk(1, 2), View{.data = source.data()});
    const Error error = failure_of([&] { session.exchange(held, wanted, with(rank == 1 ? 400 : 64 << 10)); });
    require(error.code() == ErrorCode::out_of_resources, error.what());
    require(says(error, "300 bytes of the smallest staging budget, 400 on member 1"), error.what());
    require(source.wrong(1) == 0, "nothing was written");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(members_that_only_hold_or_only_want_take_part) {
  const auto port = free_port();
  const TensorSpec spec = named("w", {30, 8});
  on_members(4, [&](int rank) {
    Session session = Session::join(member(rank, 4, port), tight());
    // Layout ranks 0 and 1 of the old layout are members 0 and 1; those of the new one are members 1 to 3.
    Catalog held(Rank{rank < 2 ? rank : 0}, 2);
    Catalog wanted(Rank{rank == 0 ? 0 : rank - 1}, 3);
    std::vector<std::byte> memory(30 * 8 * 4);
    TestShard source(spec, Layout::chunk(0, 2), held.layout_rank());
    source.use(memory.data());
    TestShard target(spec, Layout::chunk(0, 3), wanted.layout_rank());
    target.use(memory.data() + 16);
    if (rank < 2) {
      source.fill(1);
      source.add_to(held);
    }
    if (rank > 0) target.add_to(wanted);
    session.exchange(held, wanted, with(64 << 10));
    require(rank == 0 || target.wrong(1) == 0, "every element arrived");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(one_element_tensors_may_lie_on_held_memory) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    const TensorSpec spec = named("w", {64});
    const TensorSpec scale = named("scale", {1});
    TestShard source(spec, Layout::chunk(0, 2), Rank{rank});
    source.fill(1);
    float value = 4.5F;
    Catalog held(Rank{rank}, 2);
    source.add_to(held);
    held.add(scale, Layout::replicated(), View{.data = &value});
    TestShard target(spec, Layout::replicated(), Rank{rank});
    Catalog wanted(Rank{rank}, 2);
    target.add_to(wanted);
    wanted.add(scale, Layout::replicated(), View{.data = source.data()});  // overlaps the first element held
    session.exchange(held, wanted, with(64 << 10));
    require(target.wrong(1) == 0, "the tensor was read first");
    float arrived = 0;
    std::memcpy(&arrived, source.data(), sizeof arrived);
    require(arrived == 4.5F, "then the value was written");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(a_tensor_is_not_overwritten_before_it_is_read_under_its_other_name) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    // Two tensors swap their memory. One member only wants "embedding", held as "head".
    std::vector<std::byte> memory(2 * 200 * 4);
    const Layout rows = Layout::chunk(0, 2);
    const Layout whole = Layout::replicated();
    TestShard w(named("w", {200}), rows, Rank{rank});
    TestShard head(named("head", {200}), rows, Rank{rank});
    w.use(memory.data());
    head.use(memory.data() + 400);
    w.fill(1);
    head.fill(2);
    Catalog held(Rank{rank}, 2);
    w.add_to(held);
    head.add_to(held);
    held.alias("embedding", "head");
    TestShard to_w(named("w", {200}), rank == 0 ? whole : rows, Rank{rank});
    TestShard to_embedding(named("embedding", {200}), rank == 0 ? rows : whole, Rank{rank});
    to_embedding.use(memory.data());
    to_w.use(memory.data() + (rank == 0 ? 400 : 800));
    Catalog wanted(Rank{rank}, 2);
    to_embedding.add_to(wanted);
    to_w.add_to(wanted);
    // Staging for one part at a time, so that the order matters.
    session.exchange(held, wanted, with(4 * 800 / 3 + 4));
    require(to_w.wrong(1) == 0, "w arrived");
    require(to_embedding.wrong(2) == 0, "the shared tensor arrived");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(two_tensors_that_another_member_declares_one_are_refused_before_anything_is_written) {
  // "a" disjoint from held memory, so that it would be written first; "b" on held memory, or disjoint as well.
  for (const bool on_held : {true, false}) {
    const auto port = free_port();
    on_members(3, [&](int rank) {
      Session session = Session::join(member(rank, 3, port), tight());
      const TensorSpec a = named("a", {300});
      const Layout rows = Layout::chunk(0, 3);
      std::vector<std::byte> memory(600);
      TestShard source(a, rows, Rank{rank});
      source.use(memory.data());
      source.fill(1);
      Catalog held(Rank{rank}, 3);
      source.add_to(held);
      if (rank == 0) held.alias("b", "a");
      std::vector<std::byte> separate(1200, std::byte{0x5a});
      std::vector<std::byte> other(400, std::byte{0x5a});
      Catalog wanted(Rank{rank}, 3);
      wanted.add(a, Layout::replicated(), View{.data = separate.data()});
      std::byte* const b = on_held ? memory.data() + 200 : other.data();
      if (rank == 1) wanted.add(named("b", {300}), rows, View{.data = b});
      const std::vector<std::byte> before = memory;
      const Error error = failure_of([&] { session.exchange(held, wanted, with(64 << 10)); });
      require(error.code() == ErrorCode::layout_mismatch, error.what());
      for (const char* part : {"member 1", "a:exp_avg", "b:exp_avg"}) require(says(error, part), error.what());
      require(error.ranks() == std::vector<Rank>{Rank{1}}, "the member is named");
      const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
      require(memory == before && std::all_of(separate.begin(), separate.end(), untouched) &&
                  std::all_of(other.begin(), other.end(), untouched),
              "nothing was written");
      // The session still works: with the alias on all members, the parameter is wanted once.
      Catalog once(Rank{rank}, 3);
      once.alias("b", "a");
      TestShard target(named(rank == 1 ? "b" : "a", {300}), Layout::replicated(), Rank{rank});
      target.add_to(once);
      session.exchange(held, once, with(64 << 10));
      require(target.wrong(1) == 0, "every element arrived");
      session.close(10s);
    });
  }
}

BOOST_AUTO_TEST_CASE(what_no_source_has_is_skipped_or_zeroed_as_asked_although_its_memory_is_held) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    std::vector<float> memory(100, 7);
    Catalog held(Rank{rank}, 2);
    held.add(named("old", {200}), Layout::chunk(0, 2), View{.data = memory.data()});
    float one = 3;
    Catalog wanted(Rank{rank}, 2);
    wanted.add(named("skipped", {40}), Layout::replicated(), View{.data = memory.data()}, Absent::skip);
    wanted.add(named("zeroed", {40}), Layout::replicated(), View{.data = memory.data() + 50}, Absent::zero);
    wanted.add(named("one", {1}), Layout::replicated(), View{.data = &one}, Absent::skip);
    const ExchangeResult result = session.exchange(held, wanted, with(64 << 10));
    for (std::size_t i = 0; i < memory.size(); ++i) {
      require(memory[i] == (i >= 50 && i < 90 ? 0.0F : 7.0F), "element " + std::to_string(i));
    }
    require(one == 3, "the skipped value is as it was");
    require(result.report.skipped.size() == 2 && result.report.zeroed.size() == 1, "the report says so");
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(exchanges_follow_one_another_in_one_session) {
  auto tensors = layers(2, 3);
  const std::size_t room = pack(tensors, 3, 100);
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    for (int turn = 0; turn < 5; ++turn) {
      require(exchange_in_place(session, tensors, room, 3, turn % 2 == 0, with(32 << 10)).good, "every byte");
    }
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(what_fails_on_one_member_ends_the_exchange_on_all) {
  auto tensors = layers(1, 3);
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    std::vector<float> memory(100);
    Catalog held(Rank{rank}, 3);
    held.add(named("w", {30}), Layout::chunk(0, 3), View{.data = memory.data()});
    Catalog wanted(Rank{rank}, 3);
    wanted.add(named("w", {30}), Layout::replicated(), View{.data = memory.data()});
    if (rank == 1) wanted.add(named("v", {30}), Layout::replicated(), View{.data = memory.data() + 29});
    const Error error = failure_of([&] { session.exchange(held, wanted, with(64 << 10)); });
    require(error.code() == ErrorCode::invalid_argument, error.what());
    require(says(error, "v:exp_avg") && says(error, "w:exp_avg"), error.what());
    require(says(error, "member 1") == (rank != 1), error.what());
    // The session still works.
    Catalog good(Rank{rank}, 3);
    good.add(named("w", {30}), Layout::replicated(), View{.data = memory.data()});
    session.exchange(held, good, with(64 << 10));
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(a_member_whose_own_word_cannot_be_sent_tells_the_others) {
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    std::vector<float> memory(100);
    Catalog held(Rank{rank}, 3);
    held.add(named("w", {30}), Layout::chunk(0, 3), View{.data = memory.data()});
    Catalog wanted(Rank{rank}, 3);
    const std::string name(rank == 1 ? 5000 : 1, 'w');  // names of up to 4096 bytes travel
    wanted.add(named(name, {30}), Layout::replicated(), View{.data = memory.data()});
    const Error error = failure_of([&] { session.exchange(held, wanted, with(64 << 10)); });
    require(error.code() == ErrorCode::invalid_argument, error.what());
    require(says(error, "too long to travel"), error.what());
    require(says(error, "member 1") == (rank != 1), error.what());
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(a_tensor_without_a_holder_on_one_member_ends_the_exchange_on_all) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    std::vector<float> memory(100);
    Catalog held(Rank{rank}, 2);
    held.add(named("w", {30}), Layout::chunk(0, 2), View{.data = memory.data()});
    Catalog wanted(Rank{rank}, 2);
    wanted.add(named("w", {30}), Layout::replicated(), View{.data = memory.data()});
    if (rank == 0) wanted.add(named("absent", {7}), Layout::replicated(), View{.data = memory.data() + 50});
    const Error error = failure_of([&] { session.exchange(held, wanted, with(64 << 10)); });
    require(error.code() == ErrorCode::layout_mismatch, error.what());
    require(says(error, "absent"), error.what());
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(a_member_that_is_gone_ends_the_exchange_by_name) {
  const auto port = free_port();
  std::atomic<int> joined = 0;
  std::atomic<int> seen = 0;
  on_members(3, [&](int rank) {
    std::optional<Session> session = Session::join(member(rank, 3, port), tight());
    ++joined;
    while (joined < 3) std::this_thread::sleep_for(1ms);
    if (rank == 2) return session.reset();
    std::vector<float> memory(100);
    Catalog held(Rank{rank}, 3);
    held.add(named("w", {30}), Layout::chunk(0, 3), View{.data = memory.data()});
    Catalog wanted(Rank{rank}, 3);
    wanted.add(named("w", {30}), Layout::chunk(0, 3), View{.data = memory.data() + 1});
    const Error error = failure_of([&] { session->exchange(held, wanted, with(64 << 10)); });
    require(error.code() == ErrorCode::peer_lost, error.what());
    require(error.ranks() == std::vector<Rank>{Rank{2}}, error.what());
    ++seen;
    while (seen < 2) std::this_thread::sleep_for(1ms);  // both must find the same reason, not a departed member
  });
}

BOOST_AUTO_TEST_CASE(a_member_that_does_not_come_ends_the_exchange_at_the_deadline) {
  const auto port = free_port();
  std::atomic<bool> over = false;
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    if (rank == 1) {
      while (!over) std::this_thread::sleep_for(1ms);
      return;
    }
    ExchangeOptions options = with(64 << 10);
    options.timeout = 300ms;
    const Error error = failure_of([&] { session.exchange(Catalog(Rank{0}, 2), Catalog(Rank{0}, 2), options); });
    over = true;
    require(error.code() == ErrorCode::timed_out, error.what());
  });
}

// The member with the later deadline still reads from the one that waits for it until its own has passed.
BOOST_AUTO_TEST_CASE(a_deadline_that_passes_on_one_member_is_the_reason_on_all) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    const TensorSpec spec = named("w", {1 << 20});
    TestShard source(spec, Layout::chunk(0, 2), Rank{rank});
    source.fill(1);
    TestShard target(spec, Layout::chunk(0, 2), Rank{1 - rank});
    Catalog held(Rank{rank}, 2);
    source.add_to(held);
    Catalog wanted(Rank{1 - rank}, 2);
    target.add_to(wanted);
    ExchangeOptions options = with(64 << 10);
    if (rank == 0) options.timeout = 3s;
    if (rank == 1) options.ingress_bytes_per_second = source.size_bytes() / 600;
    session.gather("both here", {}, patience);
    const Error error = failure_of([&] { session.exchange(held, wanted, options); });
    require(error.code() == ErrorCode::timed_out, error.what());
    require(error.ranks() == std::vector<Rank>{Rank{1}}, error.what());  // the one that was waited for
    if (rank == 1) require(says(error, "member 0"), error.what());
    session.gather("over", {}, patience);
    session.close(10s);
  });
}

namespace {

/// Members 0 and 1 read from each other at a rate at which that takes minutes, and the first round too. Others have
/// nothing to do.
class SlowReads {
 public:
  explicit SlowReads(int rank)
      : source_(spec_, Layout::chunk(0, 2), Rank{rank % 2}),
        target_(spec_, Layout::chunk(0, 2), Rank{1 - rank % 2}),
        held_(Rank{rank % 2}, 2),
        wanted_(Rank{1 - rank % 2}, 2) {
    source_.fill(1);
    if (rank < 2) {
      source_.add_to(held_);
      target_.add_to(wanted_);
    }
  }
  Exchange start(Session& session) {
    ExchangeOptions options = with(64 << 10);
    options.timeout = patience;
    options.ingress_bytes_per_second = source_.size_bytes() / 600;
    return session.start_exchange(held_, wanted_, options);
  }

 private:
  const TensorSpec spec_ = named("w", {1 << 20});
  TestShard source_;
  TestShard target_;
  Catalog held_;
  Catalog wanted_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_member_that_stops_ends_what_others_are_reading_from_each_other,
                     *boost::unit_test::label("not-in-rounds")) {
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    SlowReads reads(rank);
    const auto began = std::chrono::steady_clock::now();
    std::atomic<bool> moving = rank == 2;
    std::string last;
    Exchange exchange = reads.start(session);
    exchange.on_progress(
        [&](const Progress& progress) {
          last = progress.stage;
          moving = moving || progress.done_bytes > 0;
        },
        1ms);
    while (!moving) std::this_thread::sleep_for(1ms);
    session.gather("all move", {}, patience);
    if (rank == 2) exchange.cancel();
    const Error error = failure_of([&] { exchange.wait(); });
    exchange.on_progress(nullptr);
    require(error.code() == ErrorCode::cancelled, error.what());
    require(rank == 2 || says(error, "member 2"), error.what());
    require(last == "failed", "the last stage is " + last);
    require(std::chrono::steady_clock::now() - began < promptly, "soon");
    session.gather("over", {}, patience);
    session.close(10s);
  });
}

// Only the restore of member 0 knows why its rounds end; the others only see that they do.
BOOST_AUTO_TEST_CASE(a_restore_that_fails_in_rounds_is_the_reason_on_all_members) {
  const ForcedMethod collective("collective");
  const auto port = free_port();
  on_members(3, [&](int rank) {
    Session session = Session::join(member(rank, 3, port), tight());
    SlowReads reads(rank);
    Exchange exchange = reads.start(session);
    if (rank == 0) {
      exchange.on_progress(
          [](const Progress& progress) {
            if (std::string_view(progress.stage) == "move") throw std::runtime_error("the caller has enough");
          },
          1ms);
    }
    std::string why;
    try {
      exchange.wait();
    } catch (const std::exception& error) {
      why = error.what();
    }
    require(why == (rank == 0 ? "the caller has enough" : "the exchange failed on member 0: the caller has enough"),
            why);
    session.gather("over", {}, patience);
    session.close(10s);
  });
}

namespace {

// A small exchange of all members.
void exchange_rows(Session& session, int members) {
  TestShard source(named("w", {60}), Layout::chunk(0, members), Rank{session.rank()});
  source.fill(1);
  TestShard target(named("w", {60}), Layout::replicated(), Rank{session.rank()});
  Catalog held(Rank{session.rank()}, members);
  source.add_to(held);
  Catalog wanted(Rank{session.rank()}, members);
  target.add_to(wanted);
  session.exchange(held, wanted, with(64 << 10));
  require(target.wrong(1) == 0, "every element arrived");
}

Session join_again(int rank, int members, std::uint16_t port) {
  for (const auto began = std::chrono::steady_clock::now();;) {
    try {
      return Session::join(member(rank, members, port), tight());
    } catch (const Error& error) {  // the rendezvous has not noticed yet that the number is free
      require(says(error, "joined already") && std::chrono::steady_clock::now() - began < patience, error.what());
    }
  }
}

}  // namespace

BOOST_DATA_TEST_CASE(a_member_that_was_replaced_takes_part_in_the_next_exchange,
                     boost::unit_test::data::make({true, false}), orderly) {
  constexpr int members = 3;
  const auto port = free_port();
  std::barrier<> replaced(members);
  on_members(members, [&](int rank) {
    std::optional<Session> session = Session::join(member(rank, members, port), tight());
    exchange_rows(*session, members);
    session->gather("first", {}, patience);
    if (rank == 2) {
      if (orderly) session->close(10s);
      session.reset();
      session = join_again(rank, members, port);
    }
    replaced.arrive_and_wait();
    for (int i = 0; i < 2; ++i) exchange_rows(*session, members);
    session->gather("last", {}, patience);
  });
}

// A process that ends in the middle of an exchange ends that one for all.
BOOST_AUTO_TEST_CASE(a_replacement_of_a_member_that_was_lost_while_others_waited_for_it_takes_part) {
  constexpr int members = 3;
  const auto port = free_port();
  std::barrier<> together(members);
  on_members(members, [&](int rank) {
    std::optional<Session> session = Session::join(member(rank, members, port), tight());
    session->gather("joined", {}, patience);
    if (rank == 2) {
      session.reset();
    } else {
      const Error error = failure_of([&] { exchange_rows(*session, members); });
      require(error.code() == ErrorCode::peer_lost, error.what());
      require(error.ranks() == std::vector<Rank>{Rank{2}}, error.what());
    }
    together.arrive_and_wait();
    if (rank == 2) session = join_again(rank, members, port);
    together.arrive_and_wait();
    for (int i = 0; i < 2; ++i) exchange_rows(*session, members);
    session->gather("last", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(a_member_that_skipped_an_exchange_takes_part_in_the_next) {
  constexpr int members = 3;
  const auto port = free_port();
  std::barrier<> missed(members);
  on_members(members, [&](int rank) {
    Session session = Session::join(member(rank, members, port), tight());
    if (rank != 1) {
      ExchangeOptions options = with(64 << 10);
      options.timeout = 200ms;
      const Error error =
          failure_of([&] { session.exchange(Catalog(Rank{rank}, members), Catalog(Rank{rank}, members), options); });
      require(error.code() == ErrorCode::timed_out, error.what());
    }
    missed.arrive_and_wait();
    for (int i = 0; i < 2; ++i) exchange_rows(session, members);
    session.gather("last", {}, patience);
  });
}

BOOST_AUTO_TEST_CASE(a_restore_still_refuses_what_an_exchange_allows_until_the_publication_is_retired) {
  Session session = Session::join(member(0, 1, free_port()), tight());
  TestShard source(named("w", {30}), Layout::replicated(), Rank{0});
  source.fill(1);
  Catalog held(Rank{0}, 1);
  source.add_to(held);
  Publication publication = session.publish(held);
  const Error error = failure_of([&] { session.restore(held); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "exchange"));
  BOOST_TEST(says(failure_of([&] { session.exchange(held, held); }), "overlaps"));  // a peer may be reading 'state'
  publication.retire(5s);
  session.exchange(held, held);
  BOOST_TEST(source.wrong(1) == 0U);
  RestoreOptions soon;
  soon.timeout = 50ms;
  Restore restore = session.restore(held, soon);  // the memory is the caller's; only a source is missing
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::timed_out));
}

BOOST_AUTO_TEST_CASE(random_placements_in_random_memory_are_right_to_the_last_byte) {
  std::mt19937_64 random(test_seed());
  const auto below = [&](std::uint64_t count) { return static_cast<std::size_t>(random() % count); };
  int done = 0;
  int refused = 0;
  for (int round = 0; round < 25; ++round) {
    const int members = 1 + static_cast<int>(below(4));
    std::vector<Placed> tensors;
    for (std::size_t i = 1 + below(7); i > 0; --i) {
      const Extents shape{static_cast<Extent>(2 + below(30)), static_cast<Extent>(1 + below(20))};
      const auto layout = [&]() -> Layout {
        switch (below(4)) {
          case 0: return Layout::replicated();
          case 1: return Layout::chunk(1, members);
          case 2: return Layout::mesh({members}, {StridedShard{0, 2}});
          default: return Layout::chunk(0, members);
        }
      };
      tensors.push_back(
          {named(std::to_string(i), shape, below(2) == 0 ? DType::f32 : DType::bf16), layout(), layout(), {}, {}});
      tensors.back().from_at.resize(static_cast<std::size_t>(members));
      tensors.back().to_at.resize(static_cast<std::size_t>(members));
    }
    // The order of tensors, with gaps, differs between members and sides.
    std::size_t room = 1;
    for (int rank = 0; rank < members; ++rank) {
      for (const bool source : {true, false}) {
        std::vector<std::size_t> order(tensors.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        std::size_t at = below(200);
        for (const std::size_t i : order) {
          (source ? tensors[i].from_at : tensors[i].to_at)[static_cast<std::size_t>(rank)] = at;
          at += local_bytes(tensors[i].spec, source ? tensors[i].from : tensors[i].to, rank) + below(2) * below(100);
        }
        room = std::max(room, at);
      }
    }
    const ExchangeOptions options = with(64 + below(6000), below(2) == 0 ? Verify::generation : Verify::digest);
    const bool in_arena = below(2) == 0;
    const auto port = free_port();
    std::atomic<int> no_room = 0;
    on_members(members, [&](int rank) {
      Session session = Session::join(member(rank, members, port), tight());
      try {
        const Outcome outcome = exchange_in_place(session, tensors, room, members, in_arena, options);
        require(outcome.good, "every byte is as expected, round " + std::to_string(round));
        check_report(outcome.report);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::out_of_resources) throw;
        ++no_room;
      }
      session.gather("done", {}, patience);
      session.close(10s);
    });
    BOOST_TEST((no_room == 0 || no_room == members));
    ++(no_room == 0 ? done : refused);
  }
  BOOST_TEST_MESSAGE(done << " exchanged, " << refused << " had no room");
  BOOST_TEST(done >= 10);
}

BOOST_AUTO_TEST_SUITE_END()
