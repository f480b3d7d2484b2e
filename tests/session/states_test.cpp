// SPDX-License-Identifier: Apache-2.0
// States that optimizers really keep in addition to parameters: each with its own dtype, and shapes that differ from
// the parameter's.
#include <boost/test/unit_test.hpp>
#include <chrono>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(states)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int members = 4;

RestoreOptions checked() {
  RestoreOptions options;
  options.timeout = 30s;
  options.discovery_grace = 100ms;
  options.verify = Verify::digest;
  return options;
}

struct State {
  const char* fqn;
  const char* state;
  DType dtype;
  Extents shape;
  Layout from;
  Layout to;
};

/// A parameter of 22 x 36 and its states; only the first layout can be derived from the parameter's.
std::vector<State> states_of_a_parameter() {
  const Layout rows = Layout::chunk(0, members);
  const Layout columns = Layout::chunk(1, members);
  const Layout grid = Layout::mesh({2, 2}, {Shard{0}, Shard{1}});
  const Layout whole = Layout::replicated();
  return {{"w", "master", DType::f32, {22, 36}, rows, grid},
          {"w", "exp_avg", DType::bf16, {22, 36}, rows, columns},
          {"w", "exp_avg_sq", DType::f32, {22, 36}, grid, rows},
          // Adafactor: one number per row and per column.
          {"w", "exp_avg_sq_row", DType::f32, {22}, rows, Layout::mesh({2, 2}, {Shard{0}, Replicate{}})},
          {"w", "exp_avg_sq_col", DType::f32, {36}, whole, Layout::mesh({2, 2}, {Replicate{}, Shard{0}})},
          // Blocks of 64 of the flattened parameter, a byte each, with a scale per block and a table.
          {"w", "quantised", DType::u8, {13, 64}, rows, Layout::chunk(0, 3)},
          {"w", "absmax", DType::f32, {13}, rows, whole},
          {"w", "table", DType::f32, {256}, whole, Layout::chunk(0, 2)},
          // fp8 travels as opaque bytes.
          {"w", "exp_avg_e4m3", DType::f8e4m3, {22, 36}, columns, rows},
          {"w", "exp_avg_e5m2", DType::f8e5m2, {22, 36}, rows, columns},
          {"w", "mask", DType::boolean, {22, 36}, rows, columns},
          {"w", "count", DType::i16, {22}, rows, whole},
          {"w", "index", DType::i64, {22}, whole, rows},
          {"w", "exact", DType::f64, {3, 5, 2}, Layout::chunk(1, members), Layout::chunk(2, members)},
          {"w", "half", DType::f16, {9}, rows, whole},
          {"w", "small", DType::i8, {9}, rows, whole},
          {"w", "wide", DType::i32, {9}, rows, whole}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_state_travels_with_its_own_dtype_shape_and_layout) {
  const auto port = free_port();
  on_members(members, [&](int rank) {
    Session session = Session::join(member(rank, members, port), quick());
    Catalog source(Rank{rank}, members);
    Catalog target(Rank{rank}, members);
    std::vector<TestShard> held;
    std::vector<TestShard> wanted;
    const std::vector<State> states = states_of_a_parameter();
    for (const State& state : states) {
      const TensorSpec spec{{state.fqn, state.state}, state.dtype, state.shape};
      held.emplace_back(spec, state.from, Rank{rank});
      wanted.emplace_back(spec, state.to, Rank{rank});
    }
    for (std::size_t i = 0; i < states.size(); ++i) {
      held[i].fill(i);
      held[i].add_to(source);
      wanted[i].add_to(target);
    }
    // One element, in the optimizer's shape.
    float step = 41.0F;
    std::uint8_t scale = 0x7f;  // a NaN of e4m3: the byte must not be read as a number
    source.add({{"w", "step"}, DType::f32, {}}, Layout::replicated(), View{.data = &step});
    source.add({{"w", "scale"}, DType::f8e4m3, {1, 1}}, Layout::replicated(), View{.data = &scale});
    Publication publication = session.publish(source);
    float restored_step = 0;
    std::uint8_t restored_scale = 0;
    target.add({{"w", "step"}, DType::f32, {}}, Layout::replicated(), View{.data = &restored_step});
    target.add({{"w", "scale"}, DType::f8e4m3, {1, 1}}, Layout::replicated(), View{.data = &restored_scale});

    Restore restore = session.restore(target, checked());
    restore.wait();
    for (std::size_t i = 0; i < states.size(); ++i) {
      require(wanted[i].wrong(i) == 0, std::string(states[i].state) + " arrived bit for bit");
    }
    require(restored_step == 41.0F && restored_scale == 0x7f, "one-element states arrived");
    require(std::get<TensorValue>(restore.value({"w", "scale"})).shape == Extents{1, 1}, "and kept their shape");
    session.gather("done", {}, patience);
    publication.retire(10s);
    session.close(10s);
  });
}

// The head is tied to the embedding. The source uses one name of the parameter, the target the other.
BOOST_AUTO_TEST_CASE(a_shared_parameter_is_moved_once_under_either_name) {
  for (const bool source_says : {true, false}) {
    const auto port = free_port();
    on_members(2, [&](int rank) {
      Session session = Session::join(member(rank, 2, port), quick());
      TestShard held({{"embed", "exp_avg"}, DType::f32, {10, 4}}, Layout::chunk(0, 2), Rank{rank});
      held.fill(1);
      Catalog source(Rank{rank}, 2);
      held.add_to(source);
      source.add_value({"embed", "step"}, std::int64_t{3});
      TestShard wanted({{"head", "exp_avg"}, DType::f32, {10, 4}}, Layout::chunk(1, 2), Rank{rank});
      Catalog target(Rank{rank}, 2);
      wanted.add_to(target);
      target.add_value({"head", "step"});
      (source_says ? source : target).alias("head", "embed");
      Publication publication = session.publish(source);
      Restore restore = session.restore(target, checked());
      restore.wait();
      require(wanted.wrong(1) == 0, "the parameter arrived");
      require(restore.report().needed_bytes == wanted.size_bytes(), "once");
      require(restore.value({"head", "step"}) == Value(std::int64_t{3}), "and its step");
      session.gather("done", {}, patience);
      publication.retire(10s);
      session.close(10s);
    });
  }
}

BOOST_AUTO_TEST_SUITE_END()
