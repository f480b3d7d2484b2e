// SPDX-License-Identifier: Apache-2.0
// Tensors of one element travel by value, and obey their layout like all others.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(one_element)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const TensorSpec scale{{"scale", "exp_avg"}, DType::f32, {1}};
const Layout rows = Layout::chunk(0, 2);  // of a tensor with one row: rank 0 holds all of it
const Layout whole = Layout::replicated();

Layout at(std::map<Rank, ElementCount> places) {
  std::map<Rank, std::vector<PlacedBox>> boxes;
  for (const auto& [rank, place] : places) boxes[rank] = {PlacedBox{Box{{0}, {1}}, place, {1}}};
  return Layout::boxes(std::move(boxes));
}

// Two members that each publish `held` and restore `wanted`, filled by these functions, and the check of the result.
struct Restored {
  std::function<void(int rank, Catalog& held)> hold;
  std::function<void(int rank, Catalog& wanted)> want;
  std::function<void(int rank, Restore& restore)> check;
  PublishOptions options{};
};

void run_two(const Restored& job) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    Catalog held(Rank{rank}, 2);
    job.hold(rank, held);
    const Publication publication = session.publish(held, job.options);
    session.gather("published", {}, patience);
    Catalog wanted(Rank{rank}, 2);
    job.want(rank, wanted);
    Restore restore = session.restore(wanted, within(patience));
    job.check(rank, restore);
    session.gather("done", {}, patience);
  });
}

Error error_of(Restore& restore) {
  return failure_of([&] { restore.wait(); });
}

}  // namespace

// --- catalog entries ---

BOOST_AUTO_TEST_CASE(a_layout_that_does_not_fit_is_refused) {
  float element = 0;
  Catalog catalog(Rank{0}, 2);
  const auto refused = [&](const TensorSpec& spec, const Layout& layout) {
    const Error error = failure_of([&] { catalog.add(spec, layout, View{.data = &element}); });
    BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
    BOOST_TEST(says(error, "scale:exp_avg, layout rank 0"), error.what());
  };
  refused(scale, Layout::chunk(5, 2));
  refused(scale, Layout::chunk(0, 3));  // there are two ranks
  refused({scale.key, DType::f32, {}}, rows);
  refused({scale.key, DType::f32, {1, 1}}, Layout::boxes({{Rank{0}, {{{0, 1}, {1, 1}}}}}));
  catalog.add(scale, rows, View{.data = &element});
}

BOOST_AUTO_TEST_CASE(a_null_view_is_enough_where_a_rank_holds_nothing) {
  Catalog empty(Rank{1}, 2);
  empty.add(scale, rows, View{});
  const auto layouts = Layout::flat(std::vector<FlatMember>{{{1}}, {{7}}}, 2);
  empty.add({{"flat", "exp_avg"}, DType::f32, {1}}, layouts[0], View{.elements = 0});
  Catalog full(Rank{0}, 2);
  const Error error = failure_of([&] { full.add(scale, rows, View{}); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "scale:exp_avg: layout rank 0 holds elements of it, but its view is null"), error.what());
}

BOOST_AUTO_TEST_CASE(a_declared_size_is_that_of_the_layout) {
  std::array<float, 8> memory{};
  const auto layouts = Layout::flat(std::vector<FlatMember>{{{3}}, {{1}}, {{4}}}, 2);
  Catalog catalog(Rank{0}, 2);
  catalog.add(scale, layouts[1], View{.data = memory.data(), .elements = 4});
  View view{.data = memory.data(), .elements = 1};
  const Error error = failure_of([&] { catalog.add({{"b", ""}, DType::f32, {1}}, layouts[1], view); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  Catalog empty(Rank{1}, 2);
  const Error nothing = failure_of([&] { empty.add(scale, rows, view); });
  BOOST_TEST(says(nothing, "declares a local buffer of 1 elements, but its layout puts 0 there"), nothing.what());
}

// --- holders, targets and positions ---

BOOST_AUTO_TEST_CASE(a_target_rank_whose_shard_is_empty_is_not_written_to) {
  std::array<float, 2> have{2.5F, 2.5F};
  std::array<float, 2> get{-1, -1};
  run_two({[&](int rank, Catalog& held) { held.add(scale, whole, View{.data = &have[rank]}); },
           [&](int rank, Catalog& wanted) { wanted.add(scale, rows, View{.data = &get[rank]}); },
           [&](int rank, Restore& restore) {
             restore.wait();
             require(get[rank] == (rank == 0 ? 2.5F : -1.0F), "only rank 0 was written to");
             require(restore.has_value(scale.key) == (rank == 0), "only rank 0 has a value");
             require(restore.report().needed_bytes == 0, "no bytes were counted");
           }});
}

BOOST_AUTO_TEST_CASE(what_one_source_rank_holds_reaches_every_rank_that_wants_it) {
  for (const Snapshot snapshot : {Snapshot::none, Snapshot::copy}) {
    float have = 2.5F;
    std::array<float, 2> get{-1, -1};
    run_two({[&](int rank, Catalog& held) { held.add(scale, rows, View{.data = rank == 0 ? &have : nullptr}); },
             [&](int rank, Catalog& wanted) { wanted.add(scale, whole, View{.data = &get[rank]}); },
             [&](int rank, Restore& restore) {
               restore.wait();
               require(get[rank] == 2.5F, "it arrived");
             },
             {.name = "state", .step = 0, .snapshot = snapshot}});
  }
}

BOOST_AUTO_TEST_CASE(an_element_lies_where_its_box_does) {
  std::array<std::array<float, 5>, 2> have{};
  std::array<std::array<float, 5>, 2> get{};
  for (auto& array : have) std::iota(array.begin(), array.end(), 1.0F);
  run_two({[&](int rank, Catalog& held) {
             held.add(scale, at({{Rank{1}, 3}}), View{.data = have[rank].data()});
           },
           [&](int rank, Catalog& wanted) {
             wanted.add(scale, at({{Rank{0}, 4}, {Rank{1}, 2}}), View{.data = get[rank].data()});
           },
           [&](int rank, Restore& restore) {
             restore.wait();
             std::array<float, 5> expected{};
             expected[rank == 0 ? 4 : 2] = 4;
             require(get[rank] == expected, "element 3 came to its place, and nothing else");
           }});
}

BOOST_AUTO_TEST_CASE(a_flat_parameter_has_members_of_one_element) {
  const std::vector<FlatMember> members{{{3}}, {{1}}, {{4}}, {{}}};  // of 9 elements, 5 on rank 0
  const auto layouts = Layout::flat(members, 2);
  std::array<std::array<float, 5>, 2> flat{{{0, 1, 2, 3, 4}, {5, 6, 7, 8, -1}}};
  std::array<std::array<float, 9>, 2> get{};
  const auto spec = [&](std::size_t i) {
    return TensorSpec{{"p" + std::to_string(i), "exp_avg"}, DType::f32, members[i].shape};
  };
  const auto add_flat = [&](int rank, Catalog& catalog, std::array<std::array<float, 5>, 2>& memory) {
    for (std::size_t i = 0; i < 4; ++i) catalog.add(spec(i), layouts[i], view(memory[rank]));
  };
  const std::array<std::size_t, 4> starts{0, 3, 4, 8};
  const auto add_whole = [&](int rank, Catalog& catalog) {
    for (std::size_t i = 0; i < 4; ++i) catalog.add(spec(i), whole, View{.data = get[rank].data() + starts[i]});
  };
  run_two({[&](int rank, Catalog& held) { add_flat(rank, held, flat); }, add_whole,
           [&](int rank, Restore& restore) {
             restore.wait();
             for (std::size_t i = 0; i < 9; ++i) require(get[rank][i] == static_cast<float>(i), "all are in place");
           }});
  std::array<std::array<float, 5>, 2> back{};
  back[1][4] = -2;
  run_two({add_whole, [&](int rank, Catalog& wanted) { add_flat(rank, wanted, back); },
           [&](int rank, Restore& restore) {
             restore.wait();
             std::array<float, 5> expected = flat[rank];
             if (rank == 1) expected[4] = -2;  // padding
             require(back[rank] == expected, "each has its part");
           }});
}

BOOST_AUTO_TEST_CASE(values_and_one_element_tensors_stand_for_each_other) {
  std::array<float, 2> memory{4, 4};
  std::array<float, 2> get{};
  const TensorKey value{"value", "exp_avg"};
  Bytes bytes(sizeof(float));
  std::memcpy(bytes.data(), memory.data(), bytes.size());
  const Value four(TensorValue{DType::f32, {1}, bytes});
  run_two({[&](int rank, Catalog& held) {
             held.add(scale, rows, View{.data = &memory[rank]});
             held.add_value(value, four);
           },
           [&](int rank, Catalog& wanted) {
             wanted.add_value(scale.key);
             wanted.add({value, DType::f32, {1}}, whole, View{.data = &get[rank]});
           },
           [&](int rank, Restore& restore) {
             restore.wait();
             require(restore.value(scale.key) == four, "a tensor as a value");
             require(get[rank] == 4, "a value as a tensor");
           }});
}

// --- authority over a value ---

BOOST_AUTO_TEST_CASE(ranks_that_hold_one_and_differ_in_a_byte_are_named_with_their_values) {
  std::array<float, 2> have{0.0F, -0.0F};
  std::array<float, 2> get{};
  run_two({[&](int rank, Catalog& held) { held.add(scale, whole, View{.data = &have[rank]}); },
           [&](int rank, Catalog& wanted) { wanted.add(scale, whole, View{.data = &get[rank]}); },
           [&](int, Restore& restore) {
             const Error error = error_of(restore);
             require(error.code() == ErrorCode::layout_mismatch, "a mismatch");
             require(error.ranks() == std::vector<Rank>{Rank{0}, Rank{1}}, "both are named");
             require(says(error, "scale:exp_avg") && says(error, "source rank 0 has f32 (1,) 0.0") &&
                         says(error, "source rank 1 has f32 (1,) -0.0"),
                     error.what());
           }});
}

BOOST_AUTO_TEST_CASE(ranks_whose_shard_of_a_one_element_parameter_is_empty_have_no_authority_over_its_step) {
  std::array<float, 2> have{2.5F, 2.5F};
  std::array<float, 2> step{7, 3};
  std::array<float, 2> get{};
  const TensorSpec step_of_scale{{"scale", "step"}, DType::f32, {}};
  const TensorKey epoch{"scale", "epoch"};
  run_two({[&](int rank, Catalog& held) {
             held.add(scale, rows, View{.data = &have[rank]});
             held.add(step_of_scale, whole, View{.data = &step[rank]});
             held.add_value(epoch, std::int64_t{rank == 0 ? 70 : 30});
           },
           [&](int rank, Catalog& wanted) {
             wanted.add(step_of_scale, whole, View{.data = &get[rank]});
             wanted.add_value(epoch);
           },
           [&](int rank, Restore& restore) {
             restore.wait();
             require(get[rank] == 7, "the step of the rank that holds the parameter");
             require(restore.value(epoch) == Value(std::int64_t{70}), "its value too");
           }});
}

// --- missing tensors and mismatches ---

BOOST_AUTO_TEST_CASE(one_that_no_source_rank_holds_is_a_gap_whatever_its_policy) {
  std::array<float, 2> get{-1, -1};
  run_two({[&](int, Catalog& held) { held.add(scale, at({}), View{}); },
           [&](int rank, Catalog& wanted) { wanted.add(scale, whole, View{.data = &get[rank]}, Absent::skip); },
           [&](int rank, Restore& restore) {
             const Error error = error_of(restore);
             require(error.gaps() == std::vector<Gap>{{"scale", "exp_avg", Box{{0}, {1}}, Rank{rank}}}, error.what());
             require(get[rank] == -1, "nothing was written");
           }});
}

BOOST_AUTO_TEST_CASE(one_that_no_source_knows_is_skipped_and_ranks_that_do_not_want_it_do_not_miss_it) {
  std::array<float, 2> have{1, 1};
  std::array<float, 2> get{-1, -1};
  const auto named = [](const char* fqn) { return TensorSpec{{fqn, "exp_avg"}, DType::f32, {1}}; };
  run_two({[&](int rank, Catalog& held) { held.add(scale, whole, View{.data = &have[rank]}); },
           [&](int rank, Catalog& wanted) {
             wanted.add(named("frozen"), whole, View{.data = &get[rank]}, Absent::skip);
             wanted.add(named("lost"), rows, View{.data = rank == 0 ? &get[0] + 1 : nullptr});
           },
           [&](int rank, Restore& restore) {
             if (rank == 1) {
               restore.wait();
               return require(restore.report().skipped == std::vector<TensorKey>{named("frozen").key}, "it is listed");
             }
             require(says(error_of(restore), "no source has lost:exp_avg"), "rank 0 wants it");
           }});
}

BOOST_AUTO_TEST_CASE(a_shape_with_another_number_of_dims_is_another_tensor) {
  std::array<float, 2> have{1, 1};
  std::array<float, 2> get{-1, -1};
  run_two({[&](int rank, Catalog& held) { held.add(scale, whole, View{.data = &have[rank]}); },
           [&](int rank, Catalog& wanted) {
             wanted.add({scale.key, DType::f32, {}}, whole, View{.data = &get[rank]});
           },
           [&](int rank, Restore& restore) {
             const Error error = error_of(restore);
             require(error.code() == ErrorCode::layout_mismatch && says(error, "scale:exp_avg is f32 (1,) and f32 ()"),
                     error.what());
             require(get[rank] == -1, "nothing was written");
           }});
}

BOOST_AUTO_TEST_CASE(an_exchange_obeys_the_layouts_too) {
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    std::array<float, 4> memory{};
    std::iota(memory.begin(), memory.end(), 10.0F * static_cast<float>(rank));
    const TensorSpec other{{"other", "exp_avg"}, DType::f32, {1}};
    Catalog held(Rank{rank}, 2);
    held.add(scale, at({{Rank{1}, 3}}), View{.data = memory.data()});
    held.add(other, at({{Rank{0}, 0}}), View{.data = memory.data()});
    Catalog wanted(Rank{rank}, 2);
    wanted.add(scale, at({{Rank{0}, 0}}), View{.data = memory.data()});  // the memory of the held "other"
    wanted.add(other, at({{Rank{1}, 3}}), View{.data = memory.data()});
    const ExchangeResult result = session.exchange(held, wanted);
    const std::array<float, 4> expected =
        rank == 0 ? std::array<float, 4>{13, 1, 2, 3} : std::array<float, 4>{10, 11, 12, 0};
    require(memory == expected, "they changed places");
    require(result.values.contains(rank == 0 ? scale.key : other.key), "what is wanted here is among the values");
    require(result.values.size() == 1, "and nothing else");
    session.close(10s);
  });
}

// --- memory is read at publication ---

BOOST_AUTO_TEST_CASE(a_catalog_kept_over_steps_publishes_the_bytes_of_each_step) {
  Session session = Session::join(member(0, 1, free_port()), quick());
  float step = 0;
  float get = -1;
  const TensorKey epoch{"", "epoch"};
  Catalog held(Rank{0}, 1);
  held.add(scale, whole, View{.data = &step});
  held.add_value(epoch, std::int64_t{0});
  const Catalog first = held;
  Catalog wanted(Rank{0}, 1);
  wanted.add(scale, whole, View{.data = &get});
  wanted.add_value(epoch);
  for (int day = 1; day <= 4; ++day) {
    step = static_cast<float>(day);
    held.set_value(epoch, std::int64_t{day});
    Publication publication = session.publish(held, {.step = day});
    step = -5;  // the publication keeps the former value
    Restore restore = session.restore(wanted, within(patience));
    restore.wait();
    BOOST_TEST(get == static_cast<float>(day));
    BOOST_TEST((restore.value(epoch) == Value(std::int64_t{day})));
    publication.retire(10s);
  }
  const Publication publication = session.publish(first);
  Restore restore = session.restore(wanted, within(patience));
  restore.wait();
  BOOST_TEST((restore.value(epoch) == Value(std::int64_t{0})));
}

// --- replicas that differ ---

namespace {

// The element that each of two members restores of a tensor that both hold with values of their own.
std::vector<float> restored_replicas(const TensorSpec& spec, Replicas replicas) {
  const auto size = static_cast<std::size_t>(Box::whole(spec.shape).volume());
  std::array<std::vector<float>, 2> held, wanted;
  const auto port = free_port();
  on_members(2, [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    held[at].assign(size, static_cast<float>(10 + rank));
    wanted[at].assign(size, 0);
    Session session = Session::join(member(rank, 2, port), quick());
    Catalog holds(Rank{rank}, 2), wants(Rank{rank}, 2);
    holds.add(spec, whole, view(held[at]));
    wants.add(spec, whole, view(wanted[at]));
    const Publication publication = session.publish(holds);
    session.gather("published", {}, patience);
    RestoreOptions options = within(patience);
    options.replicas = replicas;
    session.restore(wants, options).wait();
    session.gather("done", {}, patience);
  });
  std::vector<float> all = wanted[0];
  all.insert(all.end(), wanted[1].begin(), wanted[1].end());
  return all;
}

bool all_are(const std::vector<float>& values, float value) {
  return std::ranges::all_of(values, [&](float one) { return one == value; });
}

}  // namespace

BOOST_AUTO_TEST_CASE(replicas_that_differ_come_from_the_first_rank_alone) {
  const TensorSpec norm{{"norm", "exp_avg"}, DType::f32, {1 << 16}};
  BOOST_TEST(all_are(restored_replicas(norm, Replicas::first), 10));
  BOOST_TEST(!all_are(restored_replicas(norm, Replicas::spread), 10));  // each member has its own
  BOOST_TEST(all_are(restored_replicas(scale, Replicas::first), 10));
}

BOOST_AUTO_TEST_SUITE_END()
