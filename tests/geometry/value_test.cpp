// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <boost/test/unit_test.hpp>
#include <complex>
#include <cstring>
#include <limits>
#include <span>

#include "shardwire/value.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(value)

using namespace shardwire;

BOOST_AUTO_TEST_CASE(floats_are_equal_when_their_bits_are) {
  const Value nan(std::numeric_limits<double>::quiet_NaN());
  const Value other(std::bit_cast<double>(std::uint64_t{0x7ff8000000000001}));
  BOOST_TEST((nan == nan));
  BOOST_TEST((nan != other));
  BOOST_TEST((Value(0.0) != Value(-0.0)));
  BOOST_TEST((Value(ValueList{{nan}}) == Value(ValueList{{nan}})));
  BOOST_TEST((Value(ValueList{{0.0}}) != Value(ValueList{{-0.0}})));
}

BOOST_AUTO_TEST_CASE(kinds_never_convert_into_one_another) {
  const std::vector<Value> all{Value(),
                               false,
                               std::int64_t{0},
                               0.0,
                               std::string(),
                               Bytes(),
                               TensorValue{},
                               ValueList{},
                               ValueList{{0.0}},
                               ValueList{{Value()}},
                               ValueList{{ValueList{}}},
                               ValueList{{ValueTuple{}}},
                               ValueTuple{},
                               ValueTuple{{0.0}},
                               ValueTuple{{ValueList{}}},
                               ValueMap{},
                               ValueMap{{"", Value()}},
                               ValueMap{{"a", Value()}},
                               ValueMap{{"a", false}},
                               ValueMap{{"a", Value()}, {"b", Value()}}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < all.size(); ++j) BOOST_TEST((all[i] == all[j]) == (i == j));
  }
}

BOOST_AUTO_TEST_CASE(text_tells_values_apart) {
  BOOST_TEST(to_string(Value()) == "None");
  BOOST_TEST(to_string(Value(true)) == "true");
  BOOST_TEST(to_string(Value(std::int64_t{1})) == "1");
  BOOST_TEST(to_string(Value(1.0)) == "1.0");
  BOOST_TEST(to_string(Value(-0.0)) == "-0.0");
  BOOST_TEST(to_string(Value(std::bit_cast<double>(std::uint64_t{0x7ff8000000000001}))) == "nan 0x7ff8000000000001");
  BOOST_TEST(to_string(Value(std::string("a\nb"))) == "'a?b'");
  BOOST_TEST(to_string(Value(Bytes(3, std::byte{0xab}))) == "3 bytes 0xababab");
  BOOST_TEST(to_string(Value(ValueList{{0.9, 0.95}})) == "[0.9, 0.95]");
  BOOST_TEST(to_string(Value(ValueList{{Value(), ValueList{{std::string("x")}}}})) == "[None, ['x']]");
  BOOST_TEST(to_string(Value(ValueTuple{{0.9, 0.95}})) == "(0.9, 0.95)");
  BOOST_TEST(to_string(Value(ValueTuple{{true}})) == "(true,)");
  BOOST_TEST(to_string(Value(ValueTuple{})) == "()");
  BOOST_TEST(to_string(Value(ValueMap{})) == "{}");
  BOOST_TEST(to_string(Value(ValueMap{{"lrs", ValueList{{0.5}}}, {"epoch", 3}})) == "{'epoch': 3, 'lrs': [0.5]}");
  TensorValue step{DType::f32, {1, 1}, Bytes(4)};
  const float number = 2.5F;
  std::memcpy(step.bytes.data(), &number, 4);
  BOOST_TEST(to_string(Value(step)) == "f32 (1, 1) 2.5");
  BOOST_TEST(to_string(Value(TensorValue{DType::bf16, {}, Bytes(2, std::byte{1})})) == "bf16 () 0x0101");
  BOOST_TEST(to_string(Value(TensorValue{opaque(3), {}, Bytes(3, std::byte{1})})) == "opaque3 () 0x010101");
}

BOOST_AUTO_TEST_CASE(text_shows_the_numbers_of_one_element_tensors) {
  const auto text_of = [](DType dtype, const auto& number) {
    const auto bytes = std::as_bytes(std::span(&number, 1));
    return to_string(Value(TensorValue{dtype, {}, Bytes(bytes.begin(), bytes.end())}));
  };
  BOOST_TEST(text_of(DType::i8, std::int8_t{-5}) == "i8 () -5");
  BOOST_TEST(text_of(DType::u8, std::uint8_t{200}) == "u8 () 200");
  BOOST_TEST(text_of(DType::u16, std::uint16_t{60'000}) == "u16 () 60000");
  BOOST_TEST(text_of(DType::u32, std::uint32_t{4'000'000'000}) == "u32 () 4000000000");
  BOOST_TEST(text_of(DType::u64, ~std::uint64_t{0}) == "u64 () 18446744073709551615");
  BOOST_TEST(text_of(DType::i64, std::int64_t{-1}) == "i64 () -1");
  BOOST_TEST(text_of(DType::complex64, std::complex<float>(0.5F, -2.0F)) == "complex64 () (0.5, -2.0)");
  BOOST_TEST(text_of(DType::complex128, std::complex<double>(1.0, 0.25)) == "complex128 () (1.0, 0.25)");
}

BOOST_AUTO_TEST_CASE(text_of_large_values_is_short) {
  BOOST_TEST(to_string(Value(std::string(10'000, 'x'))).size() < 100U);
  BOOST_TEST(to_string(Value(Bytes(10'000))).size() < 100U);
  Value wide(ValueList{std::vector<Value>(10'000, std::string(50, 'y'))});
  BOOST_TEST(to_string(wide).size() < 1000U);
  for (int i = 0; i < 10; ++i) wide = ValueList{{wide, std::string("z")}};
  BOOST_TEST(to_string(wide).size() < 5000U);
  ValueMap many;
  for (int i = 0; i < 1000; ++i) many[std::to_string(i) + std::string(100, 'k')] = std::string(100, 'v');
  BOOST_TEST(to_string(Value(many)).size() < 1000U);
  BOOST_TEST(to_string(Value(ValueTuple{std::vector<Value>(1000, true)})).ends_with("true, ..)"));
}

BOOST_AUTO_TEST_CASE(a_map_is_ascending_and_has_each_key_once) {
  ValueMap map;
  map["last_epoch"] = 3;
  map["base_lrs"] = ValueList{{0.1}};
  map["verbose"];
  map["last_epoch"] = 4;
  BOOST_TEST((map == ValueMap{{"verbose", Value()}, {"base_lrs", ValueList{{0.1}}}, {"last_epoch", 4}}));
  BOOST_REQUIRE(map.items().size() == 3U);
  BOOST_TEST(map.items()[0].key == "base_lrs");
  BOOST_TEST(map.items()[2].key == "verbose");
  BOOST_REQUIRE(map.find("last_epoch") != nullptr);
  BOOST_TEST((*map.find("last_epoch") == Value(std::int64_t{4})));
  BOOST_TEST(map.find("last") == nullptr);
  BOOST_TEST(map.find("zzz") == nullptr);
  test::refused(ErrorCode::invalid_argument, "the key 'a' twice", [] { ValueMap{{"a", 1}, {"b", 2}, {"a", 1}}; });
}

BOOST_AUTO_TEST_CASE(floats_inside_tuples_and_maps_are_compared_by_their_bits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  BOOST_TEST((Value(ValueTuple{{nan}}) == Value(ValueTuple{{nan}})));
  BOOST_TEST((Value(ValueTuple{{0.0}}) != Value(ValueTuple{{-0.0}})));
  BOOST_TEST((Value(ValueMap{{"a", nan}}) == Value(ValueMap{{"a", nan}})));
  BOOST_TEST((Value(ValueMap{{"a", 0.0}}) != Value(ValueMap{{"a", -0.0}})));
}

BOOST_AUTO_TEST_CASE(depth_counts_tuples_and_maps_as_well) {
  BOOST_TEST(depth_of(Value(ValueMap{})) == 1U);
  BOOST_TEST(depth_of(Value(ValueMap{{"a", 1}, {"b", ValueTuple{{ValueList{}}}}, {"c", ValueTuple{}}})) == 3U);
  Value value;
  for (int i = 0; i < 30; ++i) value = i % 2 == 0 ? Value(ValueMap{{"a", value}}) : Value(ValueTuple{{value}});
  BOOST_TEST(depth_of(value) == max_value_depth + 1);
}

BOOST_AUTO_TEST_CASE(depth_counts_lists_inside_lists) {
  BOOST_TEST(depth_of(Value(1.0)) == 0U);
  BOOST_TEST(depth_of(Value(ValueList{})) == 1U);
  Value value(ValueList{{0.9, ValueList{{Value()}}}});
  BOOST_TEST(depth_of(value) == 2U);
  for (int i = 0; i < 100; ++i) value = ValueList{{value}};
  BOOST_TEST(depth_of(value) == max_value_depth + 1);
}

BOOST_AUTO_TEST_SUITE_END()
