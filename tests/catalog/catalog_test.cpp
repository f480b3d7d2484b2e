// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <boost/test/unit_test.hpp>
#include <complex>
#include <functional>
#include <optional>
#include <span>

#include "serve/publication.hpp"
#include "shardwire/session.hpp"

namespace catalog {

using namespace shardwire;

namespace {

struct Fixture {
  Catalog catalog{Rank{0}, 2};
  std::vector<float> memory = std::vector<float>(64);

  void add(const std::string& fqn, const std::string& state = "exp_avg") {
    catalog.add({{fqn, state}, DType::f32, {8}}, Layout::chunk(0, 2), View{.data = memory.data()});
  }
};

void refused(const std::string& part, const std::function<void()>& action) {
  BOOST_CHECK_EXCEPTION(action(), Error, [&](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == ErrorCode::invalid_argument && std::string(error.what()).find(part) != std::string::npos;
  });
}

}  // namespace

}  // namespace catalog

BOOST_FIXTURE_TEST_SUITE(catalog, Fixture)

BOOST_AUTO_TEST_CASE(lists_tuples_and_maps_are_values_up_to_a_depth) {
  Value value(0.9);
  for (std::size_t i = 0; i < max_value_depth; ++i) value = ValueList{{value}};
  catalog.add_value({"w", "deep"}, value);
  refused("w:deeper", [&] { catalog.add_value({"w", "deeper"}, ValueList{{value}}); });
  refused("w:deeper", [&] { catalog.add_value({"w", "deeper"}, ValueTuple{{value}}); });
  refused("w:deeper", [&] { catalog.add_value({"w", "deeper"}, ValueMap{{"a", value}}); });
}

BOOST_AUTO_TEST_CASE(aliases_stand_in_the_manifest_in_order) {
  catalog.alias("top", "embed");
  catalog.alias("head", "embed");
  BOOST_TEST((manifest_of(catalog)->aliases == std::vector<Alias>{{"head", "embed"}, {"top", "embed"}}));
}

BOOST_AUTO_TEST_CASE(aliases_that_say_nothing_clear_are_refused) {
  catalog.alias("head", "embed");
  refused("they are one name", [&] { catalog.alias("w", "w"); });
  refused("both names", [&] { catalog.alias("", "w"); });
  refused("both names", [&] { catalog.alias("w", ""); });
  refused("declared already, as an alias of 'embed'", [&] { catalog.alias("head", "embed"); });
  refused("'head' is itself an alias of 'embed'", [&] { catalog.alias("top", "head"); });
  refused("'embed' has the alias 'head'", [&] { catalog.alias("embed", "tokens"); });
  BOOST_TEST(catalog.aliases().size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_shared_parameter_is_added_once_under_any_of_its_names) {
  catalog.alias("head", "embed");
  catalog.alias("top", "embed");
  add("head");
  refused("embed:exp_avg and head:exp_avg are one", [&] { add("embed"); });
  refused("top:exp_avg and head:exp_avg are one", [&] { add("top"); });
  refused("head:exp_avg is in the catalog already", [&] { add("head"); });
  refused("top:exp_avg and head:exp_avg are one", [&] { catalog.add_value({"top", "exp_avg"}); });
  add("embed", "exp_avg_sq");
  BOOST_TEST(catalog.entries().size() == 2U);
}

BOOST_AUTO_TEST_CASE(an_alias_that_comes_after_its_tensors_is_checked_as_well) {
  add("head");
  add("embed");
  refused("head:exp_avg and embed:exp_avg are one", [&] { catalog.alias("head", "embed"); });
  catalog.alias("top", "embed");
  refused("top:exp_avg and embed:exp_avg are one", [&] { add("top"); });

  Fixture other;
  other.add("head");
  other.catalog.alias("head", "embed");
  refused("embed:exp_avg and head:exp_avg are one", [&] { other.add("embed"); });
}

BOOST_AUTO_TEST_CASE(zero_is_refused_for_values_and_one_element_tensors) {
  refused("w:lr: Absent::zero is not for values", [&] { catalog.add_value({"w", "lr"}, 0.1, Absent::zero); });
  const TensorSpec step{{"w", "step"}, DType::f32, {1, 1}};
  refused("w:step: Absent::zero is not for values and one-element tensors, since a step of zero breaks Adam",
          [&] { catalog.add(step, Layout::replicated(), View{.data = memory.data()}, Absent::zero); });
  catalog.add(step, Layout::replicated(), View{.data = memory.data()}, Absent::skip);
  catalog.add({{"w", "exp_avg"}, DType::f32, {2}}, Layout::replicated(), View{.data = memory.data()}, Absent::zero);
}

BOOST_AUTO_TEST_CASE(a_renewed_value_is_that_of_one_catalog_and_of_copies_made_later) {
  const auto value_of = [](const Catalog& of, std::size_t index) { return of.values()[index].value; };
  catalog.add_value({"w", "lr"}, 0.1);
  catalog.add_value({"w", "step"}, std::int64_t{1});
  const Catalog before = catalog;
  catalog.set_value({"w", "step"}, std::int64_t{2});
  const Catalog after = catalog;
  BOOST_TEST((value_of(before, 1) == Value(std::int64_t{1})));
  BOOST_TEST((value_of(after, 1) == Value(std::int64_t{2})));
  BOOST_TEST((value_of(after, 0) == Value(0.1)));
  BOOST_TEST((after.same(catalog) && !after.same(before)));
  Catalog other = before;
  other.set_value({"w", "lr"}, Value());
  BOOST_TEST((value_of(before, 0) == Value(0.1)));
}

BOOST_AUTO_TEST_CASE(a_value_is_renewed_under_every_name_of_its_parameter) {
  catalog.add_value({"head", "step"}, std::int64_t{1});
  catalog.alias("head", "embed");
  catalog.set_value({"embed", "step"}, std::int64_t{2});
  catalog.set_value({"head", "step"}, std::int64_t{3});
  BOOST_REQUIRE(catalog.values().size() == 1U);
  BOOST_TEST((catalog.values()[0].key == TensorKey{"head", "step"}));
  BOOST_TEST((catalog.values()[0].value == Value(std::int64_t{3})));
}

BOOST_AUTO_TEST_CASE(only_values_that_are_there_can_be_renewed) {
  add("w");
  refused("w:step: the catalog has no value of this key", [&] { catalog.set_value({"w", "step"}, 1.0); });
  refused("w:exp_avg: the catalog has no value of this key", [&] { catalog.set_value({"w", "exp_avg"}, 1.0); });
  catalog.add_value({"w", "deep"});
  Value value(0.9);
  for (std::size_t i = 0; i <= max_value_depth; ++i) value = ValueList{{value}};
  refused("w:deep: the value nests lists, tuples or maps more than 16 deep", [&] {
    catalog.set_value({"w", "deep"}, value);
  });
}

// --- views with a size ---

BOOST_AUTO_TEST_CASE(a_view_of_a_span_has_its_size_and_its_type) {
  const auto check = []<typename T>(T, std::optional<DType> dtype) {
    std::array<T, 3> mine{};
    const View from_span = view(std::span<T>(mine));
    BOOST_TEST(from_span.data == mine.data());
    BOOST_TEST((from_span.dtype == dtype));
    BOOST_TEST((dtype ? from_span.elements : from_span.bytes) == 3);
    BOOST_TEST((dtype ? from_span.bytes : from_span.elements) == -1);
    BOOST_TEST(!from_span.read_only);
    const View from_const = view(std::span<const T>(mine));
    BOOST_TEST((from_const.data == mine.data() && from_const.dtype == dtype && from_const.read_only));
  };
  check(float{}, DType::f32);
  check(double{}, DType::f64);
  check(std::int8_t{}, DType::i8);
  check(std::int16_t{}, DType::i16);
  check(std::int32_t{}, DType::i32);
  check(std::int64_t{}, DType::i64);
  check(0LL, DType::i64);
  check(std::uint8_t{}, DType::u8);
  check(std::uint16_t{}, DType::u16);
  check(std::uint32_t{}, DType::u32);
  check(std::uint64_t{}, DType::u64);
  check(0ULL, DType::u64);
  check(std::complex<float>{}, DType::complex64);
  check(std::complex<double>{}, DType::complex128);
  check(bool{}, DType::boolean);
  check(std::byte{}, std::nullopt);
}

BOOST_AUTO_TEST_CASE(a_view_of_a_vector_or_an_array_is_that_of_a_span_over_it) {
  const std::vector<double> constant(4);
  double array[5]{};
  BOOST_TEST((view(memory).data == memory.data() && view(memory).elements == 64));
  BOOST_TEST((view(constant).read_only && view(constant).dtype == DType::f64 && view(constant).elements == 4));
  BOOST_TEST((view(array).data == array && view(array).elements == 5));
  BOOST_TEST((view(std::span<float, 2>(memory.data(), 2)).elements == 2));
  BOOST_TEST(view(std::span<float>()).elements == 0);
}

BOOST_AUTO_TEST_CASE(memory_of_another_type_is_refused_with_both_names) {
  std::vector<double> doubles(4);
  refused("w:exp_avg is f32, but its view is of f64 memory", [&] {
    catalog.add({{"w", "exp_avg"}, DType::f32, {8}}, Layout::chunk(0, 2), view(doubles));
  });
  std::vector<std::uint8_t> small(4);
  refused("w:mask is bool, but its view is of u8 memory", [&] {
    catalog.add({{"w", "mask"}, DType::boolean, {8}}, Layout::chunk(0, 2), view(small));
  });
  catalog.add({{"w", "exp_avg"}, DType::f64, {8}}, Layout::chunk(0, 2), view(doubles));
}

BOOST_AUTO_TEST_CASE(opaque_elements_have_their_size) {
  std::array<std::byte, 4 * 24> blocks{};
  catalog.add({{"w", "blocks"}, opaque(24), {8}}, Layout::chunk(0, 2), view(blocks));
  BOOST_CHECK_EXCEPTION(
      catalog.add({{"v", "blocks"}, opaque(23), {8}}, Layout::chunk(0, 2), view(blocks)), Error,
      [](const Error& error) { return std::string(error.what()).find("of 96 bytes, but its layout puts 92") < 200; });
  std::vector<std::uint8_t> bytes(96);
  refused("w:codes is opaque1, but its view is of u8 memory", [&] {
    catalog.add({{"w", "codes"}, opaque(1), {8}}, Layout::chunk(0, 2), view(bytes));
  });
  refused("is unknown", [&] { catalog.add({{"w", "none"}, DType{99}, {8}}, Layout::chunk(0, 2), view(blocks)); });
}

BOOST_AUTO_TEST_CASE(memory_of_another_size_is_refused_with_both_numbers) {
  const auto mismatch = [&](const View& given, DType dtype, const std::string& part) {
    BOOST_CHECK_EXCEPTION(catalog.add({{"w", "exp_avg"}, dtype, {8}}, Layout::chunk(0, 2), given), Error,
                          [&](const Error& error) {
                            BOOST_TEST_INFO(error.what());
                            return error.code() == ErrorCode::layout_mismatch &&
                                   std::string(error.what()).find(part) != std::string::npos;
                          });
  };
  mismatch(view(std::span(memory).first(3)), DType::f32, "of 3 elements, but its layout puts 4 there");
  std::vector<std::uint16_t> halves(8);  // two bytes each, like bf16
  const auto bytes = std::as_writable_bytes(std::span(halves));
  mismatch(view(bytes.first(6)), DType::bf16, "of 6 bytes, but its layout puts 8 bytes there");
  catalog.add({{"w", "exp_avg"}, DType::bf16, {8}}, Layout::chunk(0, 2), view(bytes.first(8)));
}

// The driver is asked when the memory is used.
BOOST_AUTO_TEST_CASE(memory_of_a_device_and_its_events_are_taken_as_they_are) {
  int event = 0;  // any address
  catalog.add({{"w", "exp_avg"}, DType::f32, {8}}, Layout::chunk(0, 2),
              View{.data = memory.data(), .kind = MemoryKind::cuda, .device = 3, .ready_event = &event});
  const View& view = catalog.entries().front().view;
  BOOST_TEST((view.kind == MemoryKind::cuda));
  BOOST_TEST(view.device == 3);
  BOOST_TEST(view.ready_event == &event);
}

BOOST_AUTO_TEST_CASE(copies_of_a_catalog_go_their_own_ways) {
  Catalog copy = catalog;
  copy.alias("head", "embed");
  add("head");
  add("embed");
  BOOST_TEST(catalog.aliases().empty());
}

BOOST_AUTO_TEST_SUITE_END()
