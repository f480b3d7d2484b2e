// SPDX-License-Identifier: Apache-2.0
#include "restore/values.hpp"

#include <boost/test/unit_test.hpp>
#include <deque>

#include "serve/publication.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(restore_values)

using namespace shardwire;
using namespace shardwire::restore;

namespace {

using Named = std::vector<wire::NamedValue>;

TensorLayout tensor(const char* fqn, const Layout& layout, const char* state = "exp_avg", const Extents& shape = {8}) {
  return {{{fqn, state}, DType::f32, shape}, layout};
}

// The first `holders` ranks hold two rows each.
Layout first_ranks(int holders) {
  std::map<Rank, std::vector<Box>> boxes;
  for (int rank = 0; rank < holders; ++rank) boxes[Rank{rank}] = {Box{{2 * rank}, {2}}};
  return Layout::boxes(boxes);
}

/// A source side with the values that its ranks publish; a target of one rank.
struct Job {
  JobLayout from;
  std::deque<Named> lists;  // deque: addresses stay valid
  std::vector<ValueSource> sources;
  Catalog wanted{Rank{0}, 1};
  std::vector<float> memory = std::vector<float>(64);
  Plan plan;

  explicit Job(int ranks, std::vector<TensorLayout> tensors = {}, std::vector<Alias> aliases = {}) {
    from = JobLayout::uniform(ranks, {});
    from.sections[0].manifest =
        std::make_shared<const Manifest>(Manifest{ranks, std::move(tensors), std::move(aliases)});
  }
  void publish(int first, int last, Named values) {
    lists.push_back(std::move(values));
    for (int rank = first; rank < last; ++rank) sources.push_back({Rank{rank}, &lists.back()});
  }
  void want(const char* fqn, Absent absent, const char* state = "exp_avg", const Extents& shape = {8}) {
    wanted.add({{fqn, state}, DType::f32, shape}, Layout::replicated(), View{.data = memory.data()}, absent);
  }
  ResolvedValues find(ValueScope scope = ValueScope::all) {
    const auto manifest = manifest_of(wanted);
    plan = shardwire::plan(from, JobLayout{wanted.ranks(), {{manifest, {wanted.layout_rank()}}}}, wanted.layout_rank());
    std::vector<ValueSource> known = scope == ValueScope::none ? std::vector<ValueSource>() : sources;
    if (scope == ValueScope::own_rank) {
      std::erase_if(known, [&](const ValueSource& source) { return source.layout_rank != wanted.layout_rank(); });
    }
    return resolve_values(wanted, from, plan, known, scope);
  }
};

Named step(Value value, const char* fqn = "w") {
  return {{{fqn, "step"}, std::move(value)}};
}

std::vector<Rank> ranks(std::initializer_list<int> numbers) {
  std::vector<Rank> list;
  for (const int number : numbers) list.push_back(Rank{number});
  return list;
}

void refuses(const ResolvedValues& resolved, const std::string& part, const std::vector<Rank>& who) {
  BOOST_REQUIRE(resolved.refusal);
  const std::string text = resolved.refusal->what();
  BOOST_TEST_INFO(text);
  BOOST_TEST(text.find(part) != std::string::npos);
  BOOST_TEST((resolved.refusal->code() == ErrorCode::layout_mismatch));
  BOOST_TEST((resolved.refusal->ranks() == who));
}

const Value five(std::int64_t{5});
const Value six(std::int64_t{6});
const TensorKey step_of_w{"w", "step"};

Value scalar(int number) {
  return TensorValue{DType::f32, {}, Bytes(4, static_cast<std::byte>(number))};
}

// Three ranks with `tensors`, and the steps 1, 2 and 3 of w.
Job with_steps(std::vector<TensorLayout> tensors) {
  tensors.push_back(tensor("w", Layout::replicated(), "step", {}));
  Job job(3, std::move(tensors));
  for (int rank = 0; rank < 3; ++rank) job.publish(rank, rank + 1, step(scalar(rank + 1)));
  job.want("w", Absent::error, "step", {});
  return job;
}

Layout one_row(std::initializer_list<int> holders) {
  std::map<Rank, std::vector<Box>> boxes;
  for (const int rank : holders) boxes[Rank{rank}] = {Box{{0}, {1}}};
  return Layout::boxes(boxes);
}

}  // namespace

BOOST_AUTO_TEST_CASE(equal_values_of_all_ranks_are_taken) {
  Job job(4, {tensor("w", Layout::chunk(0, 4))});
  job.publish(0, 2, step(five));
  job.publish(2, 4, step(five));
  job.wanted.add_value(step_of_w);
  const ResolvedValues resolved = job.find();
  BOOST_TEST(!resolved.refusal);
  BOOST_TEST((resolved.values.at(step_of_w) == five));
}

BOOST_AUTO_TEST_CASE(values_that_differ_on_ranks_with_a_part_name_key_ranks_and_values) {
  Job job(4, {tensor("w", Layout::chunk(0, 4))});
  job.publish(0, 1, step(five));
  job.publish(1, 2, step(six));
  job.publish(2, 4, step(five));
  job.wanted.add_value(step_of_w);
  refuses(
      job.find(),
      "w:step: the ranks that have a part of it have to agree, but source ranks 0, 2, 3 have 5, source rank 1 has 6",
      ranks({0, 1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(ranks_without_a_part_of_the_parameter_have_no_authority) {
  // Ranks 0 and 1 hold rows of w; rank 2 holds a box without elements, rank 3 none.
  std::map<Rank, std::vector<Box>> boxes{{Rank{0}, {{{0}, {4}}}}, {Rank{1}, {{{4}, {4}}}}, {Rank{2}, {{{8}, {0}}}}};
  Job job(4, {tensor("w", Layout::boxes(boxes))});
  job.publish(0, 2, step(five));
  job.publish(2, 3, step(six));
  job.publish(3, 4, step(Value()));
  job.wanted.add_value(step_of_w);
  const ResolvedValues resolved = job.find();
  BOOST_TEST(!resolved.refusal);
  BOOST_TEST((resolved.values.at(step_of_w) == five));
}

BOOST_AUTO_TEST_CASE(a_part_of_any_state_gives_authority) {
  Job job(3, {tensor("w", first_ranks(1)), tensor("w", first_ranks(2), "exp_avg_sq")});
  job.publish(0, 1, step(five));
  job.publish(1, 2, step(six));
  job.publish(2, 3, step(five));
  job.wanted.add_value(step_of_w);
  refuses(job.find(), "source rank 0 has 5, source rank 1 has 6", ranks({0, 1}));
}

BOOST_AUTO_TEST_CASE(everybody_has_authority_where_no_source_has_such_a_tensor) {
  Job job(2, {tensor("other", first_ranks(1))});
  job.publish(0, 1, {{{"", "epoch"}, five}});
  job.publish(1, 2, {{{"", "epoch"}, six}});
  job.wanted.add_value({"", "epoch"});
  refuses(job.find(), ":epoch", ranks({0, 1}));
}

BOOST_AUTO_TEST_CASE(all_that_hold_a_one_element_tensor_decide_where_the_parameter_has_no_other) {
  refuses(with_steps({}).find(), "source rank 0 has f32 () ", ranks({0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(a_step_kept_everywhere_gives_no_authority_over_a_sharded_parameter) {
  BOOST_TEST((with_steps({tensor("w", first_ranks(1))}).find().values.at(step_of_w) == scalar(1)));
  refuses(with_steps({tensor("w", first_ranks(2))}).find(), "source rank 1 has f32 () ", ranks({0, 1}));
}

BOOST_AUTO_TEST_CASE(those_with_the_shard_of_a_one_element_parameter_decide_on_its_step) {
  const auto row = [](std::initializer_list<int> holders, const char* state) {
    return tensor("w", one_row(holders), state, {1});
  };
  BOOST_TEST((with_steps({row({1}, "exp_avg")}).find().values.at(step_of_w) == scalar(2)));
  // A second scalar held by all ranks adds no information.
  BOOST_TEST(
      (with_steps({row({1}, "exp_avg"), row({0, 1, 2}, "mu_product")}).find().values.at(step_of_w) == scalar(2)));
  refuses(with_steps({row({0, 2}, "exp_avg"), row({0, 2}, "exp_avg_sq")}).find(), "source rank 2 has ", ranks({0, 2}));
  refuses(with_steps({row({0}, "exp_avg"), row({2}, "exp_avg_sq")}).find(), "source rank 2 has ", ranks({0, 2}));
  // If no rank holds it, it gives no authority.
  refuses(with_steps({row({}, "exp_avg")}).find(), "source rank 0 has ", ranks({0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(a_one_element_tensor_that_is_known_but_not_held_is_a_gap) {
  Job job(2, {tensor("w", one_row({}), "step", {1})});
  job.publish(0, 2, {});
  job.want("w", Absent::skip, "step", {1});
  const ResolvedValues resolved = job.find();
  BOOST_TEST((job.plan.gaps == std::vector<Gap>{{"w", "step", Box{{0}, {1}}, Rank{0}}}));
  BOOST_TEST((resolved.skipped.empty() && resolved.absent.empty()));
}

BOOST_AUTO_TEST_CASE(a_value_that_only_ranks_without_authority_have_is_taken_when_they_agree) {
  Job job(4, {tensor("w", first_ranks(2))});
  job.publish(0, 2, {});
  job.publish(2, 3, step(five));
  job.publish(3, 4, step(five));
  job.wanted.add_value(step_of_w);
  BOOST_TEST((job.find().values.at(step_of_w) == five));
  job.sources.pop_back();
  job.publish(3, 4, step(six));
  refuses(job.find(), "source rank 2 has 5, source rank 3 has 6", ranks({2, 3}));
}

BOOST_AUTO_TEST_CASE(none_is_not_absence) {
  Job job(2, {tensor("w", Layout::chunk(0, 2))});
  job.publish(0, 2, step(Value()));
  job.wanted.add_value(step_of_w, {}, Absent::skip);
  const ResolvedValues resolved = job.find();
  BOOST_TEST((resolved.values.at(step_of_w) == Value()));
  BOOST_TEST(resolved.skipped.empty());
  job.sources.pop_back();
  job.publish(1, 2, step(five));
  refuses(job.find(), "source rank 0 has None, source rank 1 has 5", ranks({0, 1}));
}

BOOST_AUTO_TEST_CASE(floats_that_differ_in_one_bit_are_in_conflict_and_nan_agrees_with_itself) {
  Job job(2, {tensor("w", Layout::chunk(0, 2))});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  job.publish(0, 1, {{{"w", "lr"}, ValueList{{nan}}}, {{"w", "zero"}, 0.0}});
  job.publish(1, 2, {{{"w", "lr"}, ValueList{{nan}}}, {{"w", "zero"}, -0.0}});
  job.wanted.add_value({"w", "lr"});
  BOOST_TEST(job.find().values.size() == 1U);
  job.wanted.add_value({"w", "zero"});
  refuses(job.find(), "source rank 0 has 0.0, source rank 1 has -0.0", ranks({0, 1}));
}

BOOST_AUTO_TEST_CASE(conflicts_about_what_nobody_wants_do_not_matter) {
  Job job(2, {tensor("w", Layout::chunk(0, 2))});
  job.publish(0, 1, {{{"w", "seed"}, five}, {{"w", "step"}, five}});
  job.publish(1, 2, {{{"w", "seed"}, six}, {{"w", "step"}, five}});
  job.wanted.add_value(step_of_w);
  const ResolvedValues resolved = job.find();
  BOOST_TEST(!resolved.refusal);
  BOOST_TEST(resolved.values.size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_conflict_of_sixteen_thousand_ranks_fits_into_a_message) {
  constexpr int many = 16384;
  Job job(many, {tensor("w", Layout::replicated())});
  for (int i = 0; i < 64; ++i) {
    job.publish(i * many / 64, (i + 1) * many / 64, {{{"w", "a"}, std::int64_t{i}}, {{"w", "b"}, std::int64_t{i}}});
  }
  job.wanted.add_value({"w", "a"});
  job.wanted.add_value({"w", "b"});
  const ResolvedValues resolved = job.find();
  BOOST_REQUIRE(resolved.refusal);
  const std::string text = resolved.refusal->what();
  BOOST_TEST_INFO(text);
  BOOST_TEST(text.size() < 1000U);
  BOOST_TEST(text.find("source ranks 0, 1, 2, 3, 4, 5, 6, 7, .. (256 ranks) have 0, ") != std::string::npos);
  BOOST_TEST(text.find("have other values; 1 more keys are in conflict") != std::string::npos);
  BOOST_TEST(resolved.refusal->ranks().size() == std::size_t{many});
}

BOOST_AUTO_TEST_CASE(values_are_found_under_every_name_of_their_parameter) {
  const std::vector<Alias> tied{{"head", "embed"}};
  Job source(2, {tensor("embed", Layout::chunk(0, 2))}, tied);
  source.publish(0, 1, step(five, "embed"));
  source.publish(1, 2, step(five, "head"));
  source.wanted.add_value({"head", "step"});
  BOOST_TEST((source.find().values.at({"head", "step"}) == five));
  source.sources.pop_back();
  source.publish(1, 2, step(six, "head"));
  refuses(source.find(), "source rank 0 has 5, source rank 1 has 6", ranks({0, 1}));

  Job target(2, {tensor("embed", Layout::chunk(0, 2))});
  target.publish(0, 2, step(five, "embed"));
  target.wanted.alias("head", "embed");
  target.wanted.add_value({"head", "step"});
  BOOST_TEST((target.find().values.at({"head", "step"}) == five));
}

BOOST_AUTO_TEST_CASE(authority_follows_the_aliases) {
  Job job(2, {tensor("embed", first_ranks(1))}, {{"head", "embed"}});
  job.publish(0, 1, step(five, "head"));
  job.publish(1, 2, step(six, "head"));
  job.wanted.add_value({"head", "step"});
  BOOST_TEST((job.find().values.at({"head", "step"}) == five));
}

// --- values that need not agree ---

BOOST_AUTO_TEST_CASE(any_value_is_that_of_the_lowest_rank_with_authority) {
  // Ranks 1 and 2 hold rows of w.
  std::map<Rank, std::vector<Box>> boxes{{Rank{1}, {{{0}, {4}}}}, {Rank{2}, {{{4}, {4}}}}};
  Job job(4, {tensor("w", Layout::boxes(boxes))});
  for (const int rank : {3, 2, 0, 1}) job.publish(rank, rank + 1, step(std::int64_t{rank}));
  job.wanted.add_value(step_of_w, {}, Absent::error, Agree::any);
  const ResolvedValues resolved = job.find();
  BOOST_TEST(!resolved.refusal);
  BOOST_TEST((resolved.values.at(step_of_w) == Value(std::int64_t{1})));
}

BOOST_AUTO_TEST_CASE(any_value_is_that_of_the_lowest_rank_where_no_rank_with_authority_has_one) {
  Job job(4, {tensor("w", first_ranks(2))});
  job.publish(0, 2, {});
  job.publish(3, 4, step(six));
  job.publish(2, 3, step(five));
  job.wanted.add_value(step_of_w, {}, Absent::error, Agree::any);
  BOOST_TEST((job.find().values.at(step_of_w) == five));
}

BOOST_AUTO_TEST_CASE(any_value_takes_none_for_a_value_and_absence_for_absence) {
  Job job(2);
  job.publish(0, 1, {{{"", "note"}, Value()}});
  job.publish(1, 2, {{{"", "note"}, five}});
  job.wanted.add_value({"", "note"}, {}, Absent::error, Agree::any);
  job.wanted.add_value({"", "seed"}, {}, Absent::error, Agree::any);
  job.wanted.add_value({"", "hint"}, {}, Absent::skip, Agree::any);
  const ResolvedValues resolved = job.find();
  BOOST_TEST((resolved.values.at({"", "note"}) == Value()));
  BOOST_TEST((resolved.absent == std::vector<AbsentKey>{{{"", "seed"}}}));
  BOOST_TEST((resolved.skipped == std::vector<TensorKey>{{"", "hint"}}));
}

BOOST_AUTO_TEST_CASE(a_value_per_rank_is_that_of_the_same_layout_rank) {
  for (int rank = 0; rank < 3; ++rank) {
    Job job(3, {tensor("w", first_ranks(1))});  // authority does not matter
    job.wanted = Catalog(Rank{rank}, 3);
    for (const int source : {2, 0, 1}) job.publish(source, source + 1, {{{"", "rng"}, std::int64_t{source}}});
    job.wanted.add_value({"", "rng"}, {}, Absent::error, Agree::per_rank);
    BOOST_TEST((job.find().values.at({"", "rng"}) == Value(std::int64_t{rank})));
  }
}

BOOST_AUTO_TEST_CASE(a_value_per_rank_that_its_rank_has_not_published_is_absent) {
  const auto find = [](int rank, Absent absent) {
    Job job(3);
    job.wanted = Catalog(Rank{rank}, 8);
    job.publish(0, 2, {{{"", "rng"}, five}});
    job.publish(2, 3, {});
    job.wanted.add_value({"", "rng"}, {}, absent, Agree::per_rank);
    return std::pair(job.find(), job.plan.gaps);
  };
  BOOST_TEST((find(1, Absent::error).first.values.at({"", "rng"}) == five));
  for (const int rank : {2, 7}) {
    BOOST_TEST((find(rank, Absent::skip).first.skipped == std::vector<TensorKey>{{"", "rng"}}));
    const auto [resolved, gaps] = find(rank, Absent::error);
    BOOST_TEST((resolved.absent == std::vector<AbsentKey>{{{"", "rng"}, Rank{rank}}}));
    BOOST_TEST((gaps == std::vector<Gap>{{"", "rng", Box{}, Rank{rank}}}));
    test::refused(ErrorCode::layout_mismatch,
                  "; source rank " + std::to_string(rank) + " has no :rng: add what may be missing with Absent::skip",
                  [&, &resolved = resolved, &gaps = gaps] { require_complete(gaps, resolved.absent); });
  }
}

BOOST_AUTO_TEST_CASE(values_per_rank_need_the_values_of_one_source) {
  Job job(3, {tensor("w", Layout::chunk(0, 3))});
  job.wanted = Catalog(Rank{1}, 3);
  job.want("w", Absent::error);
  BOOST_TEST((value_scope(job.wanted) == ValueScope::none));
  for (int rank = 0; rank < 3; ++rank) job.publish(rank, rank + 1, {{{"", "rng"}, std::int64_t{rank}}});
  job.wanted.add_value({"", "rng"}, {}, Absent::error, Agree::per_rank);
  BOOST_TEST((value_scope(job.wanted) == ValueScope::own_rank));
  BOOST_TEST((job.find(ValueScope::own_rank).values.at({"", "rng"}) == Value(std::int64_t{1})));
  // A tensor without a holder may be a value of any source.
  job.want("lazy", Absent::zero);
  BOOST_TEST(job.find(ValueScope::own_rank).values_unknown);
  BOOST_TEST((job.find(ValueScope::all).values.at({"", "rng"}) == Value(std::int64_t{1})));
  Catalog more = job.wanted;
  more.add_value({"", "epoch"}, {}, Absent::error, Agree::any);
  BOOST_TEST((value_scope(more) == ValueScope::all));
  job.want("w", Absent::error, "step", {});
  BOOST_TEST((value_scope(job.wanted) == ValueScope::all));
}

BOOST_AUTO_TEST_CASE(a_value_per_rank_is_found_under_every_name_of_its_parameter) {
  Job job(2, {tensor("embed", first_ranks(1))}, {{"head", "embed"}});
  job.publish(0, 1, step(five, "embed"));
  job.publish(1, 2, step(six, "head"));
  job.wanted = Catalog(Rank{1}, 2);
  job.wanted.add_value({"head", "step"}, {}, Absent::error, Agree::per_rank);
  BOOST_TEST((job.find().values.at({"head", "step"}) == six));
}

BOOST_AUTO_TEST_CASE(a_tensor_is_no_value_whatever_the_policy) {
  for (const Agree agree : {Agree::any, Agree::per_rank}) {
    Job job(2, {tensor("w", Layout::chunk(0, 2))});
    job.publish(0, 2, {});
    job.wanted.add_value({"w", "exp_avg"}, {}, Absent::skip, agree);
    refuses(job.find(), "w:exp_avg: wanted as a value, but it is a f32 tensor", ranks({0}));
  }
}

// --- absence ---

BOOST_AUTO_TEST_CASE(a_value_that_nobody_has_is_a_gap_or_skipped) {
  Job job(2, {tensor("w", Layout::chunk(0, 2))});
  job.publish(0, 2, step(five));
  job.wanted.add_value({"w", "lr"});
  job.wanted.add_value({"w", "momentum"}, {}, Absent::skip);
  const ResolvedValues resolved = job.find();
  BOOST_TEST((job.plan.gaps == std::vector<Gap>{{"w", "lr", Box{}, Rank{0}}}));
  BOOST_TEST((resolved.absent == std::vector<AbsentKey>{{{"w", "lr"}}}));
  BOOST_TEST((resolved.skipped == std::vector<TensorKey>{{"w", "momentum"}}));
  BOOST_CHECK_EXCEPTION(require_complete(job.plan.gaps, resolved.absent), Error, [](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.gaps().size() == 1 && std::string(error.what()).find("no source has w:lr: add") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(tensors_that_nobody_has_follow_their_policy) {
  Job job(2, {tensor("w", Layout::chunk(0, 2))});
  job.publish(0, 2, {});
  job.want("w", Absent::zero);
  job.want("frozen", Absent::skip);
  job.want("lazy", Absent::zero);
  job.want("lost", Absent::error);
  const ResolvedValues resolved = job.find();
  BOOST_TEST((resolved.skipped == std::vector<TensorKey>{{"frozen", "exp_avg"}}));
  BOOST_TEST((resolved.zeroed == std::vector<TensorId>{TensorId{2}}));
  BOOST_TEST((resolved.absent == std::vector<AbsentKey>{{{"lost", "exp_avg"}}}));
  BOOST_TEST((job.plan.gaps == std::vector<Gap>{{"lost", "exp_avg", Box{{0}, {8}}, Rank{0}}}));
  BOOST_TEST(job.plan.pieces.size() == 2U);
}

BOOST_AUTO_TEST_CASE(a_tensor_of_which_some_elements_have_no_holder_is_an_error_whatever_its_policy) {
  Job job(2, {tensor("w", first_ranks(2)), tensor("v", Layout::boxes({}))});
  job.publish(0, 2, {});
  job.want("w", Absent::skip);
  job.want("v", Absent::zero);
  const ResolvedValues resolved = job.find();
  BOOST_TEST((job.plan.gaps ==
              std::vector<Gap>{{"w", "exp_avg", Box{{4}, {4}}, Rank{0}}, {"v", "exp_avg", Box{{0}, {8}}, Rank{0}}}));
  BOOST_TEST((resolved.skipped.empty() && resolved.zeroed.empty() && resolved.absent.empty()));
}

BOOST_AUTO_TEST_CASE(a_tensor_is_absent_only_when_no_source_has_it_under_another_name) {
  Job job(2, {tensor("embed", first_ranks(2))}, {{"head", "embed"}});
  job.publish(0, 2, {});
  job.want("head", Absent::zero);
  BOOST_TEST(job.find().zeroed.empty());
  BOOST_TEST((job.plan.gaps == std::vector<Gap>{{"head", "exp_avg", Box{{4}, {4}}, Rank{0}}}));
}

BOOST_AUTO_TEST_CASE(without_values_nothing_is_called_absent) {
  Job job(2, {tensor("w", Layout::chunk(0, 2))});
  job.publish(0, 2, {{{"lazy", "exp_avg"}, Value()}});
  job.want("w", Absent::error);
  BOOST_TEST(!job.find(ValueScope::none).values_unknown);
  job.want("lazy", Absent::zero);
  BOOST_TEST(job.find(ValueScope::none).values_unknown);
  // A tensor published by value is not absent.
  refuses(job.find(), "lazy:exp_avg: wanted as a f32 tensor of shape (8,), but source ranks 0, 1 have None by value",
          ranks({0, 1}));
}

// --- mismatched kinds ---

BOOST_AUTO_TEST_CASE(a_tensor_wanted_as_a_value_is_refused) {
  Job job(2, {tensor("w", Layout::chunk(0, 2))});
  job.publish(0, 2, {});
  job.wanted.add_value({"w", "exp_avg"}, {}, Absent::skip);
  refuses(job.find(), "w:exp_avg: wanted as a value, but it is a f32 tensor of shape (8,) on source rank 0",
          ranks({0}));
}

BOOST_AUTO_TEST_CASE(a_one_element_tensor_of_another_kind_dtype_or_shape_is_refused) {
  const auto check = [](Value value, const std::string& part) {
    Job job(2);
    job.publish(0, 2, step(std::move(value)));
    job.want("w", Absent::error, "step", {});
    refuses(job.find(), "w:step: wanted as a f32 tensor of shape (), but source ranks 0, 1 have " + part,
            ranks({0, 1}));
  };
  check(five, "5");
  check(Value(), "None");
  check(TensorValue{DType::f32, {1}, Bytes(4)}, "f32 (1,) 0.0");
  check(TensorValue{DType::f64, {}, Bytes(8)}, "f64 () 0.0");

  Job larger(2, {tensor("w", Layout::chunk(0, 2), "step")});
  larger.publish(0, 2, {});
  larger.wanted.add_value({"w", "step"});
  refuses(larger.find(), "f32 tensor of shape (8,)", ranks({0}));
}

BOOST_AUTO_TEST_SUITE_END()
