// SPDX-License-Identifier: Apache-2.0
// Handles of the C API: arguments that are missing or out of range, errors, layouts, values, plans.
#include <boost/test/unit_test.hpp>

#include <array>
#include <string>
#include <vector>

#include "c/job.hpp"

BOOST_AUTO_TEST_SUITE(c_handles)

using namespace shardwire::test;

namespace {

using Value = Handle<shardwire_value>;

Value integer(std::int64_t content) {
  Value out(shardwire_value_free);
  succeeds([&](auto error) { return shardwire_value_int(content, &out.get(), error); });
  return out;
}

Value list_of(const shardwire_value* item) {
  Value out(shardwire_value_free);
  succeeds([&](auto error) { return shardwire_value_list(&out.get(), error); });
  succeeds([&](auto error) { return shardwire_value_append(out.get(), item, error); });
  return out;
}

/// One rank that has the tensor of four elements under this layout.
Handle<shardwire_job_layout> job_of(const shardwire_layout* layout) {
  Handle<shardwire_job_layout> out(shardwire_job_layout_free);
  std::size_t section = 0;
  const auto tensor = vector_of_4();
  succeeds([&](auto error) { return shardwire_job_layout_create(1, &out.get(), error); });
  succeeds([&](auto error) { return shardwire_job_layout_add_section(out.get(), nullptr, 0, &section, error); });
  succeeds([&](auto error) { return shardwire_job_layout_add(out.get(), section, &tensor, layout, error); });
  return out;
}

std::string text_of(const shardwire_layout* layout) {
  std::array<char, 100> text{};
  const std::size_t length = shardwire_layout_to_string(layout, text.data(), text.size());
  return {text.data(), length};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_code_has_the_name_of_its_error) {
  BOOST_TEST(shardwire_code_name(SHARDWIRE_OK) == std::string("ok"));
  BOOST_TEST(shardwire_code_name(SHARDWIRE_PEER_LOST) == std::string("peer_lost"));
  BOOST_TEST(shardwire_code_name(SHARDWIRE_STEP_MISMATCH) == std::string("step_mismatch"));
  BOOST_TEST(shardwire_code_name(99) == std::string("unknown"));
}

BOOST_AUTO_TEST_CASE(a_missing_argument_is_named) {
  const Job job;
  shardwire_restore* restore = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "wanted is NULL",
        [&](auto error) { return shardwire_session_restore(job.session.get(), nullptr, nullptr, &restore, error); });
  fails(SHARDWIRE_INVALID_ARGUMENT, "session is NULL",
        [&](auto error) { return shardwire_session_restore(nullptr, nullptr, nullptr, &restore, error); });
  BOOST_TEST(restore == nullptr);
  BOOST_TEST(shardwire_session_restore(nullptr, nullptr, nullptr, &restore, nullptr) == SHARDWIRE_INVALID_ARGUMENT);
}

BOOST_AUTO_TEST_CASE(an_updated_publication_has_the_new_memory_and_step) {
  const Job job;
  float newer[4] = {5, 6, 7, 8};
  auto view = initialized(shardwire_view_init);
  view.data = newer;
  view.view_bytes = sizeof newer;
  Handle<shardwire_registration> registration(shardwire_registration_free);
  succeeds([&](auto error) {
    return shardwire_session_register_memory(job.session.get(), &view, &registration.get(), error);
  });
  BOOST_TEST(shardwire_registration_size_bytes(registration.get()) >= sizeof newer);
  const auto held = catalog_with(newer);
  succeeds([&](auto error) {
    return shardwire_publication_update(job.publication.get(), held.get(), 7, SHARDWIRE_SNAPSHOT_NONE, INT64_MAX,
                                        error);
  });
  auto options = initialized(shardwire_restore_options_init);
  options.step = 7;
  Handle<shardwire_restore> restore(shardwire_restore_free);
  const auto wanted = job.wanted();
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore.get(), error);
  });
  bool done = false;
  succeeds([&](auto error) { return shardwire_restore_wait_for(restore.get(), INT64_MAX, &done, error); });
  BOOST_TEST(done);
  BOOST_TEST(job.target[3] == 8.0F);
}

BOOST_AUTO_TEST_CASE(a_report_lists_what_no_source_has) {
  const Job job;
  const auto wanted = job.wanted();
  succeeds([&](auto error) {
    return shardwire_catalog_add_value(wanted.get(), "w", "never", nullptr, SHARDWIRE_ABSENT_SKIP, SHARDWIRE_AGREE_ANY,
                                       error);
  });
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), nullptr, &restore.get(), error);
  });
  succeeds([&](auto error) { return shardwire_restore_wait(restore.get(), error); });
  bool has = true;
  succeeds([&](auto error) { return shardwire_restore_has_value(restore.get(), "w", "never", &has, error); });
  BOOST_TEST(!has);
  const shardwire_report* report = nullptr;
  succeeds([&](auto error) { return shardwire_restore_report(restore.get(), &report, error); });
  Handle<shardwire_report> sum(shardwire_report_free);
  succeeds([&](auto error) { return shardwire_report_copy(report, &sum.get(), error); });
  shardwire_key key{};
  succeeds([&](auto error) { return shardwire_report_skipped(sum.get(), 0, &key, error); });
  BOOST_TEST(key.state == std::string("never"));
  fails(SHARDWIRE_INVALID_ARGUMENT, "key 1 is out of range: there are 1",
        [&](auto error) { return shardwire_report_skipped(sum.get(), 1, &key, error); });
  succeeds([&](auto error) { return shardwire_report_add(sum.get(), report, error); });
  auto figures = initialized(shardwire_figures_init);
  succeeds([&](auto error) { return shardwire_report_figures(sum.get(), &figures, error); });
  BOOST_TEST(figures.needed_bytes == 32U);
}

BOOST_AUTO_TEST_CASE(handles_outlive_their_session) {
  Job job;
  const auto wanted = job.wanted();
  auto options = initialized(shardwire_restore_options_init);
  options.from = "nobody publishes this";
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore.get(), error);
  });
  job.session = Handle<shardwire_session>(shardwire_session_free);
  fails(SHARDWIRE_CANCELLED, "", [&](auto error) { return shardwire_restore_wait(restore.get(), error); });
  succeeds([&](auto error) { return shardwire_publication_retire(job.publication.get(), 0, error); });
}

BOOST_AUTO_TEST_CASE(results_of_a_running_restore_are_refused) {
  const Job job;
  auto wanted = job.wanted();
  succeeds([&](auto error) {
    return shardwire_catalog_add_value(wanted.get(), "", "never", nullptr, SHARDWIRE_ABSENT_ERROR, SHARDWIRE_AGREE_ANY,
                                       error);
  });
  auto options = initialized(shardwire_restore_options_init);
  options.from = "nobody publishes this";
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore.get(), error);
  });
  const shardwire_report* report = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "still running",
        [&](auto error) { return shardwire_restore_report(restore.get(), &report, error); });
  succeeds([&](auto error) { return shardwire_restore_cancel(restore.get(), error); });
  fails(SHARDWIRE_CANCELLED, "", [&](auto error) { return shardwire_restore_wait(restore.get(), error); });
}

BOOST_AUTO_TEST_CASE(numbers_that_are_no_enumerators_are_refused) {
  auto catalog = empty_catalog();
  fails(SHARDWIRE_INVALID_ARGUMENT, "absent is 3, not 0..2", [&](auto error) {
    return shardwire_catalog_add_value(catalog.get(), "", "step", nullptr, 3, SHARDWIRE_AGREE_ANY, error);
  });
  const std::int64_t shape = 2;
  const shardwire_placement placement{5, 0, 0};
  shardwire_layout* layout = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "no placement of kind 5", [&](auto error) {
    return shardwire_layout_mesh(&shape, &placement, 1, SHARDWIRE_MESH_ORDER, nullptr, 0, &layout, error);
  });
}

BOOST_AUTO_TEST_CASE(boxes_of_a_layout_that_does_not_fit_are_refused) {
  Handle<shardwire_layout> chunk(shardwire_layout_free);
  succeeds([&](auto error) { return shardwire_layout_chunk(3, 2, &chunk.get(), error); });
  const std::int64_t shape[] = {4, 4};
  shardwire_boxes* boxes = nullptr;
  fails(SHARDWIRE_LAYOUT_MISMATCH, "dim 3",
        [&](auto error) { return shardwire_layout_boxes_of(chunk.get(), shape, 2, 2, 0, &boxes, error); });
  fails(SHARDWIRE_INVALID_ARGUMENT, "rank 2 is out of range",
        [&](auto error) { return shardwire_layout_boxes_of(chunk.get(), shape, 2, 2, 2, &boxes, error); });
  const shardwire_rank_box wide{0, {9, {}, {}}};
  shardwire_layout* layout = nullptr;
  fails(SHARDWIRE_UNSUPPORTED, "", [&](auto error) { return shardwire_layout_boxes(&wide, 1, &layout, error); });
}

BOOST_AUTO_TEST_CASE(layouts_are_those_of_the_cpp_api) {
  const std::int64_t shape[] = {2, 2};
  const shardwire_placement placements[] = {{SHARDWIRE_SHARD, 0, 0}, {SHARDWIRE_STRIDED_SHARD, 0, 2}};
  Handle<shardwire_layout> mesh(shardwire_layout_free);
  succeeds([&](auto error) {
    return shardwire_layout_mesh(shape, placements, 2, SHARDWIRE_TP_FIRST_ORDER, nullptr, 0, &mesh.get(), error);
  });
  using shardwire::Layout;
  BOOST_TEST(text_of(mesh.get()) ==
             Layout::mesh({2, 2}, {shardwire::Shard{0}, shardwire::StridedShard{0, 2}}, shardwire::MeshOrder::tp_first)
                 .to_string());
  const std::int64_t member_shape = 10;
  const shardwire_flat_member members[] = {{&member_shape, 1, nullptr, nullptr}, {&member_shape, 1, nullptr, nullptr}};
  std::array<shardwire_layout*, 2> flat{};
  succeeds([&](auto error) { return shardwire_layout_flat(members, 2, 4, 0, 1, flat.data(), error); });
  Handle<shardwire_layout> packed(shardwire_layout_free);
  succeeds([&](auto error) { return shardwire_layout_packed(flat[1], &packed.get(), error); });
  std::int64_t elements = -1;
  succeeds([&](auto error) {
    return shardwire_layout_local_elements(packed.get(), &member_shape, 1, 4, 2, &elements, error);
  });
  BOOST_TEST(elements == 5);
  BOOST_TEST(!shardwire_layout_equal(flat[0], flat[1]));
  for (shardwire_layout* layout : flat) shardwire_layout_free(layout);
}

BOOST_AUTO_TEST_CASE(a_value_nests_at_most_16_levels_deep) {
  Value value = integer(1);
  for (int depth = 0; depth < 16; ++depth) value = list_of(value.get());
  Value outer(shardwire_value_free);
  succeeds([&](auto error) { return shardwire_value_list(&outer.get(), error); });
  fails(SHARDWIRE_INVALID_ARGUMENT, "16 levels",
        [&](auto error) { return shardwire_value_append(outer.get(), value.get(), error); });
}

BOOST_AUTO_TEST_CASE(an_item_of_a_map_can_be_set_again_in_it) {
  Value map(shardwire_value_free);
  succeeds([&](auto error) { return shardwire_value_map(&map.get(), error); });
  succeeds([&](auto error) { return shardwire_value_set(map.get(), "a", integer(7).get(), error); });
  const shardwire_value* item = shardwire_value_find(map.get(), "a");
  succeeds([&](auto error) { return shardwire_value_set(map.get(), "b", item, error); });
  BOOST_TEST(shardwire_value_count(map.get()) == 2U);
  BOOST_TEST(shardwire_value_item_key(map.get(), 1) == std::string("b"));
  std::int64_t content = 0;
  succeeds([&](auto error) { return shardwire_value_to_int(shardwire_value_item(map.get(), 1), &content, error); });
  BOOST_TEST(content == 7);
}

BOOST_AUTO_TEST_CASE(a_text_that_does_not_fit_is_cut_off) {
  const Value value = integer(12345);
  char text[4] = {'x', 'x', 'x', 'x'};
  BOOST_TEST(shardwire_value_to_string(value.get(), text, sizeof text) == 5U);
  BOOST_TEST(text == std::string("123"));
  BOOST_TEST(shardwire_value_to_string(value.get(), nullptr, 0) == 5U);
}

BOOST_AUTO_TEST_CASE(a_tensor_value_has_as_many_bytes_as_its_shape) {
  const std::int64_t shape = 2;
  const float data[2] = {1, 2};
  Value value(shardwire_value_free);
  fails(SHARDWIRE_INVALID_ARGUMENT, "8 bytes, not 4",
        [&](auto error) { return shardwire_value_tensor(SHARDWIRE_F32, &shape, 1, data, 4, &value.get(), error); });
  succeeds([&](auto error) { return shardwire_value_tensor(SHARDWIRE_F32, &shape, 1, data, 8, &value.get(), error); });
  shardwire_dtype dtype = SHARDWIRE_DTYPE_NONE;
  std::int64_t dims[SHARDWIRE_MAX_DIMS] = {};
  std::size_t count = 0;
  succeeds([&](auto error) { return shardwire_value_tensor_of(value.get(), &dtype, dims, &count, error); });
  BOOST_TEST(dtype == static_cast<shardwire_dtype>(SHARDWIRE_F32));
  BOOST_TEST((count == 1U && dims[0] == 2));
}

BOOST_AUTO_TEST_CASE(options_of_param_groups_come_back_as_maps) {
  const Job job;
  Value options(shardwire_value_free);
  succeeds([&](auto error) { return shardwire_value_map(&options.get(), error); });
  succeeds([&](auto error) { return shardwire_value_set(options.get(), "lr", integer(3).get(), error); });
  const char* fqns[] = {"a", "b"};
  const shardwire_param_group group{fqns, 2, options.get()};
  const auto held = empty_catalog(), wanted = empty_catalog();
  for (const auto* catalog : {&held, &wanted}) {
    succeeds([&](auto error) {
      return shardwire_catalog_add_param_groups(catalog->get(), &group, 1, SHARDWIRE_ABSENT_ERROR, error);
    });
  }
  auto publish = initialized(shardwire_publish_options_init);
  publish.name = "groups";
  Handle<shardwire_publication> publication(shardwire_publication_free);
  succeeds([&](auto error) {
    return shardwire_session_publish(job.session.get(), held.get(), &publish, &publication.get(), error);
  });
  auto from = initialized(shardwire_restore_options_init);
  from.from = "groups";
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &from, &restore.get(), error);
  });
  succeeds([&](auto error) { return shardwire_restore_wait(restore.get(), error); });
  Value received(shardwire_value_free);
  succeeds(
      [&](auto error) { return shardwire_restore_param_groups(restore.get(), &group, 1, &received.get(), error); });
  BOOST_TEST(shardwire_value_equal(shardwire_value_item(received.get(), 0), options.get()));
}

BOOST_AUTO_TEST_CASE(costs_are_kept_per_transport_memory_and_method) {
  Handle<shardwire_costs> costs(shardwire_costs_free);
  succeeds([&](auto error) { return shardwire_costs_create(&costs.get(), error); });
  const shardwire_method_cost given{1e-6, 1e-9, 5e9};
  succeeds([&](auto error) {
    return shardwire_costs_set(costs.get(), "tcp", SHARDWIRE_MEMORY_HOST, SHARDWIRE_METHOD_ZCOPY, &given, error);
  });
  shardwire_method_cost found{};
  succeeds([&](auto error) {
    return shardwire_costs_at(costs.get(), "tcp", SHARDWIRE_MEMORY_HOST, SHARDWIRE_METHOD_ZCOPY, &found, error);
  });
  BOOST_TEST(found.bytes_per_second == given.bytes_per_second);
  fails(SHARDWIRE_INVALID_ARGUMENT, "/no/file",
        [&](auto error) { return shardwire_costs_load("/no/file", &costs.get(), error); });
}

BOOST_AUTO_TEST_CASE(a_listing_of_a_job_visits_transfers_and_gaps) {
  Handle<shardwire_layout> lower(shardwire_layout_free);
  const shardwire_rank_box box{0, {1, {0}, {3}}};
  succeeds([&](auto error) { return shardwire_layout_boxes(&box, 1, &lower.get(), error); });
  const auto from = job_of(lower.get()), to = job_of(replicated().get());
  Handle<shardwire_planner> planner(shardwire_planner_free);
  succeeds([&](auto error) {
    return shardwire_planner_create(from.get(), to.get(), nullptr, SHARDWIRE_REPLICAS_FIRST, &planner.get(), error);
  });
  const std::int32_t target = 0;
  std::uint64_t bytes = 0;
  succeeds([&](auto error) {
    const auto visit = [](void* sum, const shardwire_transfer* transfer) {
      *static_cast<std::uint64_t*>(sum) += transfer->transfer_bytes;
    };
    return shardwire_planner_each_transfer(planner.get(), &target, 1, visit, &bytes, error);
  });
  BOOST_TEST(bytes == 12U);
  fails(SHARDWIRE_CANCELLED, "visit threw", [&](auto error) {
    const auto visit = [](void*, const shardwire_gap* gap) { throw gap->box.offset[0]; };
    return shardwire_planner_each_gap(planner.get(), &target, 1, visit, nullptr, error);
  });
  auto totals = initialized(shardwire_totals_init);
  succeeds([&](auto error) { return shardwire_planner_tally(planner.get(), &target, 1, &totals, error); });
  BOOST_TEST((totals.gaps == 1U && totals.needed_bytes == 12U));
}

BOOST_AUTO_TEST_CASE(the_best_assignment_keeps_ranks_where_their_bytes_are) {
  const shardwire_flow holdings[] = {{0, 1, 100}, {1, 0, 100}};
  std::array<std::int32_t, 2> process{};
  succeeds([&](auto error) { return shardwire_best_assignment(2, 2, holdings, 2, nullptr, 0, process.data(), error); });
  BOOST_TEST((process[0] == 1 && process[1] == 0));
}

BOOST_AUTO_TEST_SUITE_END()
