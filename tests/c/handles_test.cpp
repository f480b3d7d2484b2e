// SPDX-License-Identifier: Apache-2.0
// Handles of the C API: arguments that are missing or out of range, errors, layouts, values, plans.
#include <boost/test/unit_test.hpp>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "c/handles.hpp"
#include "c/job.hpp"
#include "support/fake_root.hpp"

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

BOOST_AUTO_TEST_CASE(a_report_names_its_step_and_those_that_were_passed_over) {
  shardwire::RestoreReport report;
  const auto* const handle = shardwire::c_api::borrowed<shardwire_report>(&report);
  std::int64_t step = 0;
  BOOST_TEST(!shardwire_report_step(nullptr, &step));
  BOOST_TEST(!shardwire_report_step(handle, &step));
  report.step = 5;
  report.incomplete_steps = {{7, {{"w", "exp_avg", shardwire::Box{{32, 0}, {32, 16}}, shardwire::Rank{1}}}}};
  BOOST_TEST(shardwire_report_step(handle, &step));
  BOOST_TEST(step == 5);
  BOOST_TEST_REQUIRE(shardwire_report_incomplete_count(handle) == 1U);
  std::size_t gaps = 0;
  succeeds([&](auto error) { return shardwire_report_incomplete(handle, 0, &step, &gaps, error); });
  BOOST_TEST(step == 7);
  BOOST_TEST(gaps == 1U);
  shardwire_gap gap{};
  succeeds([&](auto error) { return shardwire_report_incomplete_gap(handle, 0, 0, &gap, error); });
  BOOST_TEST(gap.key.fqn == std::string("w"));
  BOOST_TEST(gap.target == 1);
  fails(SHARDWIRE_INVALID_ARGUMENT, "gap 1 is out of range: there are 1",
        [&](auto error) { return shardwire_report_incomplete_gap(handle, 0, 1, &gap, error); });
}

BOOST_AUTO_TEST_CASE(a_report_lists_lost_sources) {
  shardwire::RestoreReport report;
  report.lost.push_back({shardwire::Rank{3}, shardwire::ErrorCode::peer_lost, "source rank 3 has gone", 1.5, 2, 4096});
  const auto* const handle = shardwire::c_api::borrowed<shardwire_report>(&report);
  BOOST_REQUIRE(shardwire_report_lost_count(handle) == 1U);
  auto lost = initialized(shardwire_lost_source_init);
  succeeds([&](auto error) { return shardwire_report_lost(handle, 0, &lost, error); });
  BOOST_TEST(lost.rank == 3);
  BOOST_TEST((lost.reason == SHARDWIRE_PEER_LOST));
  BOOST_TEST(lost.why == std::string("source rank 3 has gone"));
  BOOST_TEST(lost.after_seconds == 1.5);
  BOOST_TEST(lost.boxes_replanned == 2U);
  BOOST_TEST(lost.resent_bytes == 4096U);
  fails(SHARDWIRE_INVALID_ARGUMENT, "lost source 1 is out of range: there are 1",
        [&](auto error) { return shardwire_report_lost(handle, 1, &lost, error); });
}

BOOST_AUTO_TEST_CASE(memory_that_is_not_what_was_published_ends_a_restore_and_is_reported) {
  const Job job;
  float rotting[4] = {1, 2, 3, 4};
  const auto held = catalog_with(rotting);
  auto publish = initialized(shardwire_publish_options_init);
  publish.name = "rotting";
  publish.digest = 1;
  Handle<shardwire_publication> publication(shardwire_publication_free);
  succeeds([&](auto error) {
    return shardwire_session_publish(job.session.get(), held.get(), &publish, &publication.get(), error);
  });
  auto options = initialized(shardwire_restore_options_init);
  options.name = "rotting";
  Handle<shardwire_restore> restore(shardwire_restore_free);
  const auto wanted = job.wanted();
  rotting[2] = 9;
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore.get(), error);
  });
  fails(SHARDWIRE_CORRUPT, "source rank 0", [&](auto error) { return shardwire_restore_wait(restore.get(), error); });
  const shardwire_report* report = nullptr;
  succeeds([&](auto error) { return shardwire_restore_report(restore.get(), &report, error); });
  BOOST_REQUIRE(shardwire_report_corrupt_count(report) == 2U);  // it was read twice
  shardwire_key key{};
  shardwire_box box{};
  std::int32_t source = -1;
  succeeds([&](auto error) { return shardwire_report_corrupt(report, 1, &key, &box, &source, error); });
  BOOST_TEST(key.fqn == std::string("w"));
  BOOST_TEST(box.dims == 1U);
  BOOST_TEST(box.extent[0] == 4);
  BOOST_TEST(source == 0);
  fails(SHARDWIRE_INVALID_ARGUMENT, "corrupt 2 is out of range: there are 2",
        [&](auto error) { return shardwire_report_corrupt(report, 2, &key, &box, &source, error); });
}

BOOST_AUTO_TEST_CASE(handles_outlive_their_session) {
  Job job;
  const auto wanted = job.wanted();
  auto options = initialized(shardwire_restore_options_init);
  options.name = "nobody publishes this";
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
  options.name = "nobody publishes this";
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore.get(), error);
  });
  const shardwire_report* report = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "still running",
        [&](auto error) { return shardwire_restore_report(restore.get(), &report, error); });
  constexpr std::int64_t one_minute_ns = 60'000'000'000;
  for (int attempt = 0; attempt < 2; ++attempt) {
    fails(SHARDWIRE_INVALID_ARGUMENT, "running",
          [&](auto error) { return shardwire_restore_resume(restore.get(), one_minute_ns, error); });
    succeeds([&](auto error) { return shardwire_restore_cancel(restore.get(), error); });
    fails(SHARDWIRE_CANCELLED, "", [&](auto error) { return shardwire_restore_wait(restore.get(), error); });
    succeeds([&](auto error) { return shardwire_restore_resume(restore.get(), one_minute_ns, error); });
  }
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
  auto named = initialized(shardwire_restore_options_init);
  named.name = "groups";
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &named, &restore.get(), error);
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

BOOST_AUTO_TEST_CASE(costs_are_saved_to_a_calibration_file) {
  const FakeRoot folder;
  const std::string path = (folder.path / "costs.json").string();
  const shardwire_measured_cost measured[] = {
      {"tcp", SHARDWIRE_MEMORY_HOST, SHARDWIRE_METHOD_ZCOPY, {1e-6, 2e-9, 5e9}},
      {"shm", SHARDWIRE_MEMORY_CUDA, SHARDWIRE_METHOD_MAPPED, {3e-6, 4e-9, 6e9}}};
  succeeds([&](auto error) { return shardwire_costs_save(path.c_str(), "a machine", measured, 2, error); });
  Handle<shardwire_costs> costs(shardwire_costs_free);
  succeeds([&](auto error) { return shardwire_costs_load(path.c_str(), &costs.get(), error); });
  for (const shardwire_measured_cost& one : measured) {
    shardwire_method_cost found{};
    succeeds([&](auto error) {
      return shardwire_costs_at(costs.get(), one.transport, one.memory, one.method, &found, error);
    });
    BOOST_TEST(found.latency_seconds == one.cost.latency_seconds);
    BOOST_TEST(found.run_seconds == one.cost.run_seconds);
    BOOST_TEST(found.bytes_per_second == one.cost.bytes_per_second);
  }
  fails(SHARDWIRE_OUT_OF_RESOURCES, "/no/folder/costs",
        [&](auto error) { return shardwire_costs_save("/no/folder/costs", "", measured, 2, error); });
  const shardwire_measured_cost any{"tcp", SHARDWIRE_MEMORY_HOST, SHARDWIRE_METHOD_ANY, {}};
  fails(SHARDWIRE_INVALID_ARGUMENT, "method is -1",
        [&](auto error) { return shardwire_costs_save(path.c_str(), "", &any, 1, error); });
}

BOOST_AUTO_TEST_CASE(ids_of_parameters_become_names) {
  const std::int64_t ids[] = {7, 3, 7}, named[] = {3, 7, 9};
  const char* names[] = {"three", "seven", "nine"};
  Handle<shardwire_strings> fqns(shardwire_strings_free);
  succeeds([&](auto error) { return shardwire_fqns_of(ids, 3, named, names, 3, &fqns.get(), error); });
  BOOST_TEST_REQUIRE(shardwire_strings_count(fqns.get()) == 3U);
  BOOST_TEST(shardwire_strings_at(fqns.get(), 0, nullptr) == std::string("seven"));
  BOOST_TEST(shardwire_strings_at(fqns.get(), 1, nullptr) == std::string("three"));
  BOOST_TEST(shardwire_strings_at(fqns.get(), 2, nullptr) == std::string("seven"));
  shardwire_strings* none = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "7",
        [&](auto error) { return shardwire_fqns_of(ids, 3, named, names, 1, &none, error); });
  const std::int64_t twice[] = {3, 3};
  fails(SHARDWIRE_INVALID_ARGUMENT, "id 3 has two names",
        [&](auto error) { return shardwire_fqns_of(ids, 0, twice, names, 2, &none, error); });
}

BOOST_AUTO_TEST_CASE(a_catalog_lists_what_it_was_given) {
  Handle<shardwire_catalog> catalog(shardwire_catalog_free);
  succeeds([&](auto error) { return shardwire_catalog_create(1, 2, &catalog.get(), error); });
  std::array<float, 9> memory{};
  auto tensor = vector_of_4();
  const std::int64_t strides[] = {2};
  auto view = initialized(shardwire_view_init);
  view.data = memory.data();
  view.offset = 1;
  view.strides = strides;
  view.stride_count = 1;
  view.read_only = true;
  succeeds([&](auto error) {
    return shardwire_catalog_add(catalog.get(), &tensor, replicated().get(), &view, SHARDWIRE_ABSENT_ZERO, error);
  });
  succeeds([&](auto error) {
    return shardwire_catalog_add_value(catalog.get(), "w", "step", integer(5).get(), SHARDWIRE_ABSENT_SKIP,
                                       SHARDWIRE_AGREE_ANY, error);
  });
  succeeds([&](auto error) { return shardwire_catalog_alias(catalog.get(), "tied", "w", error); });
  BOOST_TEST(shardwire_catalog_layout_rank(catalog.get()) == 1);
  BOOST_TEST(shardwire_catalog_rank_count(catalog.get()) == 2);
  BOOST_TEST(shardwire_catalog_tensor_count(catalog.get()) == 1U);
  BOOST_TEST(shardwire_catalog_value_count(catalog.get()) == 1U);
  BOOST_TEST(shardwire_catalog_alias_count(catalog.get()) == 1U);

  auto found = initialized(shardwire_tensor_init);
  auto place = initialized(shardwire_view_init);
  const shardwire_layout* layout = nullptr;
  shardwire_absent absent = -1;
  succeeds(
      [&](auto error) { return shardwire_catalog_tensor(catalog.get(), 0, &found, &layout, &place, &absent, error); });
  BOOST_TEST(found.fqn == std::string("w"));
  BOOST_TEST(found.state == std::string("exp_avg"));
  BOOST_TEST((found.dtype == SHARDWIRE_F32 && found.dims == 1 && found.shape[0] == 4));
  BOOST_TEST(shardwire_layout_equal(layout, replicated().get()));
  BOOST_TEST(place.data == static_cast<void*>(memory.data() + 1));
  BOOST_TEST((place.offset == 0 && place.stride_count == 1 && place.strides[0] == 2));
  BOOST_TEST((place.read_only && place.owner == nullptr && place.release == nullptr));
  BOOST_TEST(place.dtype == SHARDWIRE_DTYPE_NONE);
  BOOST_TEST(absent == SHARDWIRE_ABSENT_ZERO);

  shardwire_key key{};
  const shardwire_value* value = nullptr;
  shardwire_agree agree = -1;
  succeeds([&](auto error) { return shardwire_catalog_value(catalog.get(), 0, &key, &value, &absent, &agree, error); });
  BOOST_TEST((key.fqn == std::string("w") && key.state == std::string("step")));
  BOOST_TEST(shardwire_value_equal(value, integer(5).get()));
  BOOST_TEST((absent == SHARDWIRE_ABSENT_SKIP && agree == SHARDWIRE_AGREE_ANY));
  const char *alias = nullptr, *fqn = nullptr;
  succeeds([&](auto error) { return shardwire_catalog_alias_at(catalog.get(), 0, &alias, &fqn, error); });
  BOOST_TEST((alias == std::string("tied") && fqn == std::string("w")));

  // Nothing has to be asked for.
  succeeds([&](auto error) {
    return shardwire_catalog_tensor(catalog.get(), 0, nullptr, nullptr, nullptr, nullptr, error);
  });
  fails(SHARDWIRE_INVALID_ARGUMENT, "tensor 1 is out of range", [&](auto error) {
    return shardwire_catalog_tensor(catalog.get(), 1, nullptr, nullptr, nullptr, nullptr, error);
  });
  fails(SHARDWIRE_INVALID_ARGUMENT, "value 1 is out of range", [&](auto error) {
    return shardwire_catalog_value(catalog.get(), 1, nullptr, nullptr, nullptr, nullptr, error);
  });
  fails(SHARDWIRE_INVALID_ARGUMENT, "alias 1 is out of range",
        [&](auto error) { return shardwire_catalog_alias_at(catalog.get(), 1, nullptr, nullptr, error); });
  shardwire_view raw{};
  fails(SHARDWIRE_INVALID_ARGUMENT, "shardwire_view_init() has not initialised",
        [&](auto error) { return shardwire_catalog_tensor(catalog.get(), 0, nullptr, nullptr, &raw, nullptr, error); });
}

BOOST_AUTO_TEST_CASE(copies_of_a_catalog_are_the_same_until_one_changes) {
  const auto catalog = empty_catalog();
  Handle<shardwire_catalog> copy(shardwire_catalog_free);
  succeeds([&](auto error) { return shardwire_catalog_copy(catalog.get(), &copy.get(), error); });
  BOOST_TEST(shardwire_catalog_same(catalog.get(), copy.get()));
  BOOST_TEST(!shardwire_catalog_same(catalog.get(), empty_catalog().get()));
  succeeds([&](auto error) { return shardwire_catalog_alias(copy.get(), "tied", "w", error); });
  BOOST_TEST(!shardwire_catalog_same(catalog.get(), copy.get()));
}

BOOST_AUTO_TEST_CASE(layouts_of_a_catalog_and_of_an_inventory_are_a_case) {
  const Job job;
  Handle<shardwire_inventory> inventory(shardwire_inventory_free);
  succeeds([&](auto error) {
    return shardwire_session_inventory(job.session.get(), "state", SHARDWIRE_UNSET_STEP, 60'000'000'000,
                                       &inventory.get(), error);
  });
  const auto wanted = job.wanted();
  const auto layouts_of = [&](const shardwire_catalog* catalog) {
    Handle<shardwire_job_layout> layouts(shardwire_job_layout_free);
    succeeds([&](auto error) {
      return shardwire_session_gather_layouts(job.session.get(), catalog, 60'000'000'000, &layouts.get(), error);
    });
    return layouts;
  };
  const auto gathered = layouts_of(wanted.get());
  BOOST_TEST(shardwire_job_layout_section_count(gathered.get()) == 1U);
  BOOST_TEST(shardwire_job_layout_tensor_count(gathered.get(), 0) == 1U);
  for (const auto* target : std::initializer_list<const shardwire_job_layout*>{nullptr, gathered.get()}) {
    Handle<shardwire_strings> text(shardwire_strings_free);
    succeeds([&](auto error) { return shardwire_inventory_to_case(inventory.get(), target, &text.get(), error); });
    BOOST_TEST(std::string(shardwire_strings_at(text.get(), 0, nullptr)).find(R"("fqn": "w")") != std::string::npos);
  }
  Handle<shardwire_strings> text(shardwire_strings_free);
  succeeds([&](auto error) { return shardwire_catalog_to_case(wanted.get(), &text.get(), error); });
  BOOST_TEST(std::string(shardwire_strings_at(text.get(), 0, nullptr)).find(R"("fqn": "w")") != std::string::npos);
  Handle<shardwire_strings> none(shardwire_strings_free);
  const auto nothing = layouts_of(empty_catalog().get());
  fails(SHARDWIRE_INVALID_ARGUMENT, "a tensor that both sides have",
        [&](auto error) { return shardwire_inventory_to_case(inventory.get(), nothing.get(), &none.get(), error); });
  succeeds([&](auto error) {
    return shardwire_session_gather_layouts(job.session.get(), wanted.get(), 60'000'000'000, nullptr, error);
  });
}

BOOST_AUTO_TEST_CASE(boxes_are_those_of_the_cpp_api) {
  const std::int64_t shape[] = {4, 6};
  shardwire_box whole{}, common{};
  succeeds([&](auto error) { return shardwire_box_whole(shape, 2, &whole, error); });
  const shardwire_box inner{2, {1, 2}, {2, 3}}, apart{2, {4, 0}, {1, 6}}, over{2, {2, 4}, {9, 9}};
  std::int64_t elements = 0;
  succeeds([&](auto error) { return shardwire_box_volume(&inner, &elements, error); });
  BOOST_TEST(elements == 6);
  bool answer = false;
  succeeds([&](auto error) { return shardwire_box_contains(&whole, &inner, &answer, error); });
  BOOST_TEST(answer);
  succeeds([&](auto error) { return shardwire_box_contains(&inner, &whole, &answer, error); });
  BOOST_TEST(!answer);
  succeeds([&](auto error) { return shardwire_box_intersect(&whole, &over, &answer, &common, error); });
  const shardwire_box corner{2, {2, 4}, {2, 2}};
  BOOST_TEST(answer);
  BOOST_TEST(shardwire_box_equal(&common, &corner));
  succeeds([&](auto error) { return shardwire_box_intersect(&whole, &apart, &answer, &common, error); });
  BOOST_TEST(!answer);
  BOOST_TEST((shardwire_box_empty(&common) && common.dims == 2));
  BOOST_TEST((!shardwire_box_empty(&inner) && shardwire_box_empty(nullptr)));
  BOOST_TEST(!shardwire_box_equal(&whole, &inner));
  // Entries past dims do not count.
  shardwire_box noisy = corner;
  noisy.offset[5] = 3;
  BOOST_TEST(shardwire_box_equal(&noisy, &corner));

  std::array<char, 40> text{};
  BOOST_TEST(shardwire_box_to_string(&inner, text.data(), text.size()) == 10U);
  BOOST_TEST(text.data() == std::string("[1:3, 2:5]"));
  BOOST_TEST(shardwire_shape_to_string(shape, 2, text.data(), text.size()) == 6U);
  BOOST_TEST(text.data() == std::string("(4, 6)"));
  succeeds([&](auto error) { return shardwire_shape_volume(shape, 2, &elements, error); });
  BOOST_TEST(elements == 24);
  std::array<std::int64_t, 2> strides{};
  succeeds([&](auto error) { return shardwire_shape_strides(shape, 2, strides.data(), error); });
  BOOST_TEST((strides == std::array<std::int64_t, 2>{6, 1}));

  const shardwire_box line{1, {0}, {4}};
  fails(SHARDWIRE_INVALID_ARGUMENT, "boxes of 2 and 1 dims",
        [&](auto error) { return shardwire_box_intersect(&whole, &line, &answer, &common, error); });
  fails(SHARDWIRE_INVALID_ARGUMENT, "boxes of 2 and 1 dims",
        [&](auto error) { return shardwire_box_contains(&whole, &line, &answer, error); });
  const std::int64_t huge[] = {INT64_MAX, 2};
  fails(SHARDWIRE_INVALID_ARGUMENT, "volume",
        [&](auto error) { return shardwire_shape_volume(huge, 2, &elements, error); });
  const shardwire_box wide{9, {}, {}};
  fails(SHARDWIRE_UNSUPPORTED, "9 dimensions",
        [&](auto error) { return shardwire_box_volume(&wide, &elements, error); });
}

BOOST_AUTO_TEST_CASE(block_cyclic_deals_out_blocks) {
  // Blocks of 2 over 3 ranks, the first of them on rank 1: elements 0, 1 | 2, 3 | 4, 5 | 6, 7 on ranks 1, 2, 0, 1.
  const std::int64_t block = 2, grid = 3, source = 1, shape = 8;
  Handle<shardwire_layout> layout(shardwire_layout_free), plain(shardwire_layout_free);
  succeeds([&](auto error) { return shardwire_layout_block_cyclic(&block, &grid, &source, 1, &layout.get(), error); });
  succeeds([&](auto error) { return shardwire_layout_block_cyclic(&block, &grid, nullptr, 1, &plain.get(), error); });
  const auto starts = [&](const Handle<shardwire_layout>& of, std::int32_t rank) {
    Handle<shardwire_boxes> boxes(shardwire_boxes_free);
    succeeds([&](auto error) { return shardwire_layout_boxes_of(of.get(), &shape, 1, 3, rank, &boxes.get(), error); });
    std::size_t count = 0;
    const shardwire_placed_box* data = shardwire_boxes_data(boxes.get(), &count);
    std::vector<std::int64_t> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(data[i].box.offset[0]);
    return out;
  };
  BOOST_TEST((starts(layout, 0) == std::vector<std::int64_t>{4}));
  BOOST_TEST((starts(layout, 1) == std::vector<std::int64_t>{0, 6}));
  BOOST_TEST((starts(layout, 2) == std::vector<std::int64_t>{2}));
  BOOST_TEST((starts(plain, 0) == std::vector<std::int64_t>{0, 6}));
}

BOOST_AUTO_TEST_CASE(a_layout_within_another_splits_its_local_arrays) {
  // TP over rows, FSDP over the rows of each TP rank. Rank = FSDP rank * 2 + TP rank.
  Handle<shardwire_layout> tp(shardwire_layout_free), fsdp(shardwire_layout_free), both(shardwire_layout_free);
  succeeds([&](auto error) { return shardwire_layout_chunk(0, 2, &tp.get(), error); });
  succeeds([&](auto error) { return shardwire_layout_chunk(0, 3, &fsdp.get(), error); });
  succeeds([&](auto error) { return shardwire_layout_within(tp.get(), 2, fsdp.get(), &both.get(), error); });
  const std::int64_t shape[] = {12, 5};
  for (std::int32_t rank = 0; rank < 6; ++rank) {
    Handle<shardwire_boxes> boxes(shardwire_boxes_free);
    succeeds([&](auto error) { return shardwire_layout_boxes_of(both.get(), shape, 2, 6, rank, &boxes.get(), error); });
    std::size_t count = 0;
    const shardwire_placed_box* data = shardwire_boxes_data(boxes.get(), &count);
    BOOST_TEST_REQUIRE(count == 1U);
    const shardwire_box expected{2, {rank % 2 * 6 + rank / 2 * 2, 0}, {2, 5}};
    BOOST_TEST(shardwire_box_equal(&data[0].box, &expected));
  }
  fails(SHARDWIRE_INVALID_ARGUMENT, "",
        [&](auto error) { return shardwire_layout_within(both.get(), 0, fsdp.get(), &tp.get(), error); });
}

BOOST_AUTO_TEST_CASE(copies_of_a_rank_are_further_holders) {
  const auto held = job_of(replicated().get());
  for (int i = 0; i < 2; ++i) {
    succeeds([&](auto error) { return shardwire_job_layout_add_copy(held.get(), 0, error); });
  }
  fails(SHARDWIRE_INVALID_ARGUMENT, "a copy of rank 1 of 1",
        [&](auto error) { return shardwire_job_layout_add_copy(held.get(), 1, error); });
  const std::int32_t lost[] = {0, 2};
  Handle<shardwire_job_layout> rest(shardwire_job_layout_free);
  succeeds([&](auto error) { return shardwire_job_layout_without(held.get(), lost, 2, &rest.get(), error); });
  std::size_t count = 0;
  const std::int32_t* copies = shardwire_job_layout_copies(held.get(), &count);
  BOOST_TEST_REQUIRE(count == 2U);
  BOOST_TEST((copies[0] == 0 && copies[1] == 0));
  shardwire_job_layout_copies(rest.get(), &count);
  BOOST_TEST(count == 0U);
  BOOST_TEST(*shardwire_job_layout_ranks(rest.get(), 0, &count) == 0);  // the copy that remains
  BOOST_TEST(count == 1U);
}

BOOST_AUTO_TEST_CASE(totals_have_a_row_for_each_target) {
  const auto job = [](std::int32_t ranks, const shardwire_layout* layout) {
    Handle<shardwire_job_layout> out(shardwire_job_layout_free);
    std::size_t section = 0;
    const auto tensor = vector_of_4();
    succeeds([&](auto error) { return shardwire_job_layout_create(ranks, &out.get(), error); });
    succeeds([&](auto error) { return shardwire_job_layout_add_section(out.get(), nullptr, 0, &section, error); });
    succeeds([&](auto error) { return shardwire_job_layout_add(out.get(), section, &tensor, layout, error); });
    return out;
  };
  Handle<shardwire_layout> halves(shardwire_layout_free);
  succeeds([&](auto error) { return shardwire_layout_chunk(0, 2, &halves.get(), error); });
  Handle<shardwire_planner> planner(shardwire_planner_free);
  succeeds([&](auto error) {
    return shardwire_planner_create(job(2, halves.get()).get(), job(3, replicated().get()).get(), nullptr,
                                    SHARDWIRE_REPLICAS_COMPARE, &planner.get(), error);
  });
  Handle<shardwire_targets> targets(shardwire_targets_free);
  succeeds([&](auto error) { return shardwire_planner_targets(planner.get(), nullptr, 0, &targets.get(), error); });
  std::size_t count = 0;
  const shardwire_target_totals* rows = shardwire_targets_data(targets.get(), &count);
  BOOST_TEST_REQUIRE(count == 3U);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    BOOST_TEST(rows[rank].target == rank);
    BOOST_TEST(rows[rank].needed_bytes == 16U);
    BOOST_TEST(rows[rank].local_bytes == (rank < 2 ? 8U : 0U));
    BOOST_TEST(rows[rank].pieces == 2U);
    BOOST_TEST(rows[rank].runs == 2);
  }
  const std::int32_t lost = 0;
  shardwire_targets* none = nullptr;
  fails(SHARDWIRE_LAYOUT_MISMATCH, "w",
        [&](auto error) { return shardwire_planner_targets(planner.get(), &lost, 1, &none, error); });

  std::vector<std::pair<std::int32_t, std::uint64_t>> seen;  // target, bytes of its flows
  const std::int32_t some[] = {2, 0};
  succeeds([&](auto error) {
    const auto visit = [](void* context, const shardwire_target_totals* totals, const shardwire_flow* flows,
                          std::size_t flow_count) {
      std::uint64_t bytes = 0;
      for (std::size_t i = 0; i < flow_count; ++i) bytes += flows[i].flow_bytes;
      static_cast<decltype(seen)*>(context)->emplace_back(totals->target, bytes);
    };
    return shardwire_planner_each_target(planner.get(), some, 2, visit, &seen, error);
  });
  BOOST_TEST((seen == decltype(seen){{2, 16}, {0, 16}}));
  fails(SHARDWIRE_CANCELLED, "visit threw", [&](auto error) {
    const auto visit = [](void*, const shardwire_target_totals* totals, const shardwire_flow*, std::size_t) {
      throw totals->target;
    };
    return shardwire_planner_each_target(planner.get(), some, 2, visit, nullptr, error);
  });
}

BOOST_AUTO_TEST_CASE(an_unknown_type_of_elements_is_repeated_with_the_nearest) {
  shardwire_dtype dtype = SHARDWIRE_DTYPE_NONE;
  fails(SHARDWIRE_INVALID_ARGUMENT, "there is no type 'bf61' (did you mean 'bf16'?); known are f64, ",
        [&](auto error) { return shardwire_dtype_parse("bf61", &dtype, error); });
  fails(SHARDWIRE_INVALID_ARGUMENT, "there is no type 'float32' (did you mean 'f32'?); known are f64, ",
        [&](auto error) { return shardwire_dtype_parse("float32", &dtype, error); });
}

BOOST_AUTO_TEST_SUITE_END()
