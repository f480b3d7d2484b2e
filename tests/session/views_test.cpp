// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cmath>
#include <set>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(views)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const Extents shape{10, 6};
TensorSpec named(const std::string& fqn, DType dtype = DType::f32) {
  return {{fqn, "exp_avg"}, dtype, shape};
}

// The rows that `layout` gives to `rank` of the (10, 6) tensor, in a larger array: local row i, column k is at offset +
// i * row + k * column.
struct Rows {
  Layout layout;
  Rank rank;
  ElementCount offset = 0;
  Extent row = 6;
  Extent column = 1;

  template <typename Visit>
  void each(Visit visit) const {
    Extent local = 0;
    for (Extent i = 0; i < shape[0]; ++i) {
      bool held = false;
      for (const PlacedBox& placed : layout.boxes_of(shape, rank)) {
        held = held || (placed.box.lower(0) <= i && i < placed.box.upper(0));
      }
      if (!held) continue;
      for (Extent k = 0; k < shape[1]; ++k) visit(offset + local * row + k * column, i * shape[1] + k);
      ++local;
    }
  }
  void fill(float* memory, float base) const {
    each([&](ElementCount at, ElementCount index) { memory[at] = base + static_cast<float>(index); });
  }
  [[nodiscard]] bool holds(const float* memory, float base) const {
    bool good = true;
    each([&](ElementCount at, ElementCount index) { good = good && memory[at] == base + static_cast<float>(index); });
    return good;
  }
  [[nodiscard]] std::set<ElementCount> touched() const {
    std::set<ElementCount> all;
    each([&](ElementCount at, ElementCount) { all.insert(at); });
    return all;
  }
  [[nodiscard]] View view(float* memory) const {
    View view{.data = memory, .strides = {row, column}};
    view.offset = offset;
    view.elements = static_cast<ElementCount>(touched().size());
    return view;
  }
};

constexpr std::size_t room = 400;

// Restores two tensors, each with its own view on either side; bytes outside the views must stay unchanged.
void member_restores(int rank, std::uint16_t port, bool arena, Snapshot snapshot, Verify verify) {
  Session session = Session::join(member(rank, 2, port), tight());
  Arena memory = session.allocate(arena ? room * sizeof(float) : 0);
  std::vector<float> own(arena ? 0 : room, -1);
  float* const held = arena ? reinterpret_cast<float*>(memory.data()) : own.data();
  std::fill(held, held + room, -1.0F);
  std::vector<float> wanted(room, -7);
  const Layout chunk = Layout::chunk(0, 2);
  const Layout strided = Layout::mesh({2}, {StridedShard{0, 3}});
  // a column-major, b row-major with gaps, interleaved with c: rows of one fused array
  const Rows a{chunk, Rank{rank}, 3, 1, 5};
  const Rows b{strided, Rank{rank}, 100, 14, 1};
  const Rows c{strided, Rank{rank}, 107, 14, 1};
  a.fill(held, 0);
  b.fill(held, 1000);
  c.fill(held, 2000);
  Catalog source(Rank{rank}, 2);
  source.add(named("a"), chunk, a.view(held));
  source.add(named("b"), strided, b.view(held));
  source.add(named("c"), strided, c.view(held));
  Publication publication = session.publish(source, {.name = "state", .step = 0, .snapshot = snapshot});
  if (snapshot == Snapshot::copy) std::fill(held, held + room, 99.0F);

  const Rows to_a{Layout::replicated(), Rank{rank}, 5, 13, 2};   // every second column
  const Rows to_b{Layout::replicated(), Rank{rank}, 6, 13, 2};   // the columns in between
  const Rows to_c{Layout::chunk(0, 3), Rank{rank}, 200, 1, 20};  // column-major with padding; rows 4 and 4 of 10
  Catalog target(Rank{rank}, 3);
  target.add(named("a"), Layout::replicated(), to_a.view(wanted.data()));
  target.add(named("b"), Layout::replicated(), to_b.view(wanted.data()));
  target.add(named("c"), Layout::chunk(0, 3), to_c.view(wanted.data()));
  RestoreOptions options = tight_within(patience);
  options.verify = verify;
  Restore restore = session.restore(target, options);
  restore.wait();
  require(to_a.holds(wanted.data(), 0), "a arrived");
  require(to_b.holds(wanted.data(), 1000), "b arrived");
  require(to_c.holds(wanted.data(), 2000), "c arrived");
  std::set<ElementCount> touched = to_a.touched();
  touched.merge(to_b.touched());
  touched.merge(to_c.touched());
  for (std::size_t i = 0; i < room; ++i) {
    require(touched.contains(static_cast<ElementCount>(i)) || wanted[i] == -7, "nothing else was written");
  }
  const RestoreReport& report = restore.report();
  const bool direct = reads_arenas() && (arena || snapshot == Snapshot::copy);
  require(report.methods[Method::mapped].bytes == (direct && maps_arenas() ? report.moved_bytes : 0),
          "arenas were mapped");
  const ByteCount sent = report.methods[Method::packed].bytes + report.methods[Method::zcopy].bytes;
  require(sent == (direct || reads_ordinary_memory() ? 0 : report.moved_bytes), "other memory was read, or sent");
  session.gather("done", {}, patience);
  publication.retire(10s);
  session.close(10s);
}

}  // namespace

BOOST_AUTO_TEST_CASE(strided_views_are_mapped_and_written_where_they_say) {
  const auto port = free_port();
  on_members(2, [&](int rank) { member_restores(rank, port, true, Snapshot::none, Verify::digest); });
}

BOOST_AUTO_TEST_CASE(strided_views_of_ordinary_memory_are_read_or_sent) {
  const auto port = free_port();
  on_members(2, [&](int rank) { member_restores(rank, port, false, Snapshot::none, Verify::digest); });
}

BOOST_AUTO_TEST_CASE(a_snapshot_of_strided_views_keeps_their_elements) {
  const auto port = free_port();
  on_members(2, [&](int rank) { member_restores(rank, port, false, Snapshot::copy, Verify::generation); });
}

BOOST_AUTO_TEST_CASE(tensors_that_share_a_buffer_are_copied_once_into_a_snapshot) {
  Session session = Session::join(member(0, 1, free_port()), tight());
  std::vector<float> fused(60 * 8, 1);
  const auto before = session.usage().registered_bytes;
  Catalog source(Rank{0}, 1);
  for (int i = 0; i < 8; ++i) {
    View view{.data = fused.data(), .strides = {48, 1}};
    view.offset = 6 * i;
    source.add(named("part" + std::to_string(i)), Layout::replicated(), view);
  }
  const Publication publication = session.publish(source, {.name = "state", .step = 0, .snapshot = Snapshot::copy});
  BOOST_TEST(session.usage().registered_bytes - before == fused.size() * sizeof(float));
}

BOOST_AUTO_TEST_CASE(a_storage_offset_holds_for_one_element_tensors) {
  Session session = Session::join(member(0, 1, free_port()), tight());
  float values[]{1, 2, 3};
  float wanted[]{0, 0, 0};
  const TensorSpec scale{{"scale", "exp_avg"}, DType::f32, {1}};
  View from{.data = values};
  from.offset = 2;
  View to{.data = wanted};
  to.offset = 1;
  Catalog source(Rank{0}, 1);
  source.add(scale, Layout::replicated(), from);
  Catalog target(Rank{0}, 1);
  target.add(scale, Layout::replicated(), to);
  const Publication publication = session.publish(source);
  session.restore(target, tight_within(patience)).wait();
  BOOST_TEST((wanted[0] == 0 && wanted[1] == 3 && wanted[2] == 0));
}

BOOST_AUTO_TEST_CASE(a_declared_size_that_differs_from_the_layout_is_refused_with_both_numbers) {
  std::vector<float> memory(60);
  Catalog catalog(Rank{1}, 3);
  View view{.data = memory.data()};
  view.elements = 20;
  const Error error = failure_of([&] { catalog.add(named("w"), Layout::chunk(0, 3), view); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  for (const char* part : {"w:exp_avg", "layout rank 1", "20", "24"}) BOOST_TEST(says(error, part), error.what());
  view.elements = 24;
  catalog.add(named("w"), Layout::chunk(0, 3), view);
  view.elements = 2;
  TensorSpec scalar{{"s", "exp_avg"}, DType::f32, {}};
  BOOST_TEST(says(failure_of([&] { catalog.add(scalar, Layout::replicated(), view); }), "s:exp_avg"));
}

BOOST_AUTO_TEST_CASE(views_that_cannot_be_are_refused_by_tensor_and_layout_rank) {
  std::vector<float> memory(600);
  Catalog catalog(Rank{0}, 1);
  const auto refused = [&](const Extents& strides, ElementCount offset, const Layout& layout) {
    View view{.data = memory.data(), .strides = strides};
    view.offset = offset;
    const Error error = failure_of([&] { catalog.add(named("w"), layout, view); });
    BOOST_TEST(says(error, "w:exp_avg"), error.what());
    return error;
  };
  BOOST_TEST(says(refused({5, 1}, 0, Layout::replicated()), "share an address"));
  BOOST_TEST(says(refused({-6, 1}, 0, Layout::replicated()), "negative"));
  BOOST_TEST(says(refused({6}, 0, Layout::replicated()), "2 dims"));
  BOOST_TEST(says(refused({}, -1, Layout::replicated()), "offset"));
  const Layout boxes = Layout::boxes({{Rank{0}, {Box{{0, 0}, {2, 6}}, Box{{4, 0}, {2, 6}}}}});
  const Error error = refused({12, 1}, 0, boxes);
  BOOST_TEST((error.code() == ErrorCode::unsupported));
  BOOST_TEST(says(error, "layout rank 0"), error.what());
}

BOOST_AUTO_TEST_CASE(destinations_may_interleave_but_not_share_a_byte) {
  Session session = Session::join(member(0, 1, free_port()), tight());
  std::vector<float> held(60, 1);
  std::vector<float> fused(600);
  Catalog source(Rank{0}, 1);
  source.add(named("a"), Layout::replicated(), View{.data = held.data()});
  const Publication publication = session.publish(source);
  const auto target = [&](ElementCount second) {
    Catalog catalog(Rank{0}, 1);
    View view{.data = fused.data(), .strides = {12, 1}};
    catalog.add(named("a"), Layout::replicated(), view);
    view.offset = second;
    catalog.add(named("b"), Layout::replicated(), view);
    return catalog;
  };
  const Error error = failure_of([&] { session.restore(target(5), tight_within(patience)); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  for (const char* part : {"wanted a:exp_avg", "wanted b:exp_avg", "layout rank 0", "its own memory"}) {
    BOOST_TEST(says(error, part), error.what());
  }
  Restore restore = session.restore(target(6), tight_within(patience));
  BOOST_TEST(says(failure_of([&] { restore.wait(); }), "b:exp_avg"));  // no source holds b: the memory was accepted
}

BOOST_AUTO_TEST_CASE(const_memory_is_published_and_never_restored_into) {
  Session session = Session::join(member(0, 1, free_port()), tight());
  const std::vector<float> have{1, 2, 3};
  std::vector<float> get(3);
  const TensorSpec spec{{"v", "exp_avg"}, DType::f32, {3}};
  Catalog source(Rank{0}, 1);
  source.add(spec, Layout::replicated(), view(have));
  const Publication publication = session.publish(source);
  Catalog target(Rank{0}, 1);
  target.add(spec, Layout::replicated(), view(get));
  session.restore(target, tight_within(patience)).wait();
  BOOST_TEST(get == have);
  const std::vector<float> untouched(3);
  Catalog refused(Rank{0}, 1);
  refused.add(spec, Layout::replicated(), view(untouched));
  for (const Error& error : {failure_of([&] { session.restore(refused, tight_within(patience)); }),
                             failure_of([&] { session.exchange(Catalog(Rank{0}, 1), refused); })}) {
    BOOST_TEST((error.code() == ErrorCode::invalid_argument));
    BOOST_TEST(says(error, "v:exp_avg: its view on layout rank 0 was made from const memory"), error.what());
  }
}

BOOST_AUTO_TEST_SUITE_END()
