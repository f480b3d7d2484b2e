// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <set>

#include "geometry/value_items.hpp"
#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(values)

using namespace samples;

BOOST_AUTO_TEST_CASE(every_kind_of_value_survives_and_comes_back_sorted) {
  Maker maker(test_seed());
  std::vector<NamedValue> original = maker.values();
  const Bytes bytes = encode_values(original);
  std::ranges::shuffle(original, std::mt19937_64(test_seed()));
  BOOST_CHECK(encode_values(original) == bytes);
  std::ranges::sort(original, {}, &NamedValue::key);
  BOOST_CHECK(decode_values(bytes) == original);
  BOOST_CHECK(decode_values(encode_values({})).empty());
}

BOOST_AUTO_TEST_CASE(none_is_not_absence_and_kinds_stay_apart) {
  const auto bytes_for = [](Value value) { return encode_values({{{"", "step"}, std::move(value)}}); };
  const std::vector<Bytes> all{encode_values({}),
                               bytes_for({}),
                               bytes_for(false),
                               bytes_for(std::int64_t{0}),
                               bytes_for(0.0),
                               bytes_for(-0.0),
                               bytes_for(std::string()),
                               bytes_for(Bytes()),
                               bytes_for(TensorValue{DType::f32, {0}, {}}),
                               bytes_for(ValueList{}),
                               bytes_for(ValueList{{Value()}}),
                               bytes_for(ValueList{{0.0}}),
                               bytes_for(ValueList{{std::int64_t{0}}}),
                               bytes_for(ValueList{{ValueList{}}}),
                               bytes_for(ValueTuple{}),
                               bytes_for(ValueTuple{{0.0}}),
                               bytes_for(ValueList{{ValueTuple{}}}),
                               bytes_for(ValueMap{}),
                               bytes_for(ValueMap{{"", Value()}}),
                               bytes_for(ValueMap{{"a", Value()}}),
                               bytes_for(ValueMap{{"a", ValueMap{}}})};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) BOOST_CHECK_MESSAGE(all[i] != all[j], i << " and " << j);
  }
}

BOOST_AUTO_TEST_CASE(the_payload_of_a_nan_survives) {
  const auto odd = std::bit_cast<double>(0x7ff4dead0000beefull);
  const auto decoded = decode_values(encode_values({{{"a", "b"}, odd}}));
  BOOST_CHECK_EQUAL(std::bit_cast<std::uint64_t>(std::get<double>(*decoded.at(0).value)), 0x7ff4dead0000beefull);
}

BOOST_AUTO_TEST_CASE(lists_of_many_alike_items_survive) {
  // In canonical form such items shrink to the minimum that distinguishes them.
  for (const Value& item : {Value(), Value(false), Value(std::int64_t{0}), Value(0.0), Value(ValueList{})}) {
    const std::vector<NamedValue> original{{{"w", "betas"}, ValueList{std::vector<Value>(1000, item)}}};
    BOOST_CHECK(decode_values(encode_values(original)) == original);
  }
}

BOOST_AUTO_TEST_CASE(tuples_and_maps_of_many_items_survive) {
  ValueMap map;
  for (int i = 0; i < 1000; ++i) map[std::to_string(i)] = Value();
  const std::vector<NamedValue> original{{{"", "map"}, map},
                                         {{"", "tuple"}, ValueTuple{std::vector<Value>(1000, Value())}}};
  BOOST_CHECK(decode_values(encode_values(original)) == original);
}

BOOST_AUTO_TEST_CASE(maps_filled_in_any_order_have_the_same_bytes) {
  ValueMap one;
  ValueMap other;
  for (const char* key : {"a", "b", "c"}) one[key] = std::string(key);
  for (const char* key : {"c", "a", "b"}) other[key] = std::string(key);
  BOOST_CHECK(encode_values({{{"", "map"}, one}}) == encode_values({{{"", "map"}, other}}));
}

BOOST_AUTO_TEST_CASE(a_map_from_a_peer_has_ascending_keys) {
  const Bytes good = encode_values({{{"", "map"}, ValueMap{{"aaaa", 1}, {"bbbb", 2}, {"cccc", 3}}}});
  const auto with_second_key = [&](const std::string& key) {
    Bytes bytes = good;
    const std::string second = "bbbb";
    const auto old = std::as_bytes(std::span(second));
    const auto at = std::search(bytes.begin(), bytes.end(), old.begin(), old.end());
    BOOST_REQUIRE(at != bytes.end());
    std::ranges::copy(std::as_bytes(std::span(key)), at);
    return bytes;
  };
  BOOST_CHECK((decode_values(with_second_key("baba")) ==
               std::vector<NamedValue>{{{"", "map"}, ValueMap{{"aaaa", 1}, {"baba", 2}, {"cccc", 3}}}}));
  for (const char* key : {"aaaa", "cccc", "dddd", "\0aaa"}) {
    BOOST_CHECK_EXCEPTION((void)decode_values(with_second_key({key, 4})), Error, [](const Error& error) {
      BOOST_TEST_INFO(error.what());
      return error.code() == ErrorCode::transport_failed &&
             std::string(error.what()).find("a key out of order or repeated") != std::string::npos;
    });
  }
}

BOOST_AUTO_TEST_CASE(lists_that_are_too_deep_or_too_long_are_refused_when_encoding) {
  const auto says = [](const std::string& part) {
    return [part](const Error& error) {
      return error.code() == ErrorCode::invalid_argument && std::string(error.what()).find(part) != std::string::npos;
    };
  };
  BOOST_CHECK_EXCEPTION((void)encode_values({{{"w", "betas"}, Maker::nested(max_value_depth + 1)}}), Error,
                        says("w:betas nests lists, tuples or maps more than 16 deep"));
  BOOST_CHECK_EXCEPTION((void)encode_values({{{"", "scheduler"}, Maker::nested_maps(max_value_depth + 1)}}), Error,
                        says(":scheduler nests lists, tuples or maps"));
  std::vector<Value> many(1u << 19, true);
  std::vector<Value> others(1u << 19, false);
  const std::vector<NamedValue> three{
      {{"a", "list"}, ValueList{many}}, {{"b", "list"}, ValueList{others}}, {{"c", "list"}, ValueList{{true}}}};
  BOOST_CHECK_EXCEPTION((void)encode_values(three), Error, says("c:list"));
  const std::vector<NamedValue> mixed{
      {{"a", "list"}, ValueList{many}}, {{"b", "tuple"}, ValueTuple{many}}, {{"c", "map"}, ValueMap{{"a", true}}}};
  BOOST_CHECK_EXCEPTION((void)encode_values(mixed), Error, says("c:map"));
}

BOOST_AUTO_TEST_CASE(equal_values_travel_once_and_share_their_memory) {
  std::vector<NamedValue> all;
  for (int i = 0; i < 1000; ++i) {
    const std::string fqn = "layers." + std::to_string(i) + ".weight";
    all.push_back({{fqn, "betas"}, ValueTuple{{0.9, i < 500 ? 0.95 : 0.99}}});
    all.push_back({{fqn, "step"}, TensorValue{DType::f32, {}, Bytes(4, std::byte{7})}});
    all.push_back({{fqn, "again"}, TensorValue{DType::f32, {1}, Bytes(4, std::byte{7})}});
  }
  std::ranges::sort(all, {}, &NamedValue::key);
  const Bytes bytes = encode_values(all);
  BOOST_TEST(bytes.size() < 5 * all.size());
  const std::vector<NamedValue> decoded = decode_values(bytes);
  BOOST_CHECK(decoded == all);
  std::set<const Value*> distinct;
  for (const NamedValue& one : decoded) distinct.insert(&*one.value);
  BOOST_TEST(distinct.size() == 4U);
}

BOOST_AUTO_TEST_CASE(items_of_values_that_are_equal_count_once) {
  std::vector<NamedValue> all;
  const SharedValue options = ValueList{std::vector<Value>(1000, 0.1)};
  for (int i = 0; i < 2000; ++i) all.push_back({{std::to_string(i), "param_group"}, options});
  std::ranges::sort(all, {}, &NamedValue::key);
  BOOST_CHECK(decode_values(encode_values(all)) == all);
}

BOOST_AUTO_TEST_CASE(exactly_equal_values_are_equivalent_in_their_order) {
  Maker maker(test_seed());
  std::vector<Value> all;
  for (int i = 0; i < 3; ++i) {
    for (const NamedValue& one : maker.values()) all.push_back(*one.value);
  }
  const ValueLess less;
  for (const Value& a : all) {
    for (const Value& b : all) {
      BOOST_TEST((!less(a, b) && !less(b, a)) == (a == b));
      for (const Value& c : all) BOOST_CHECK(!(less(a, b) && less(b, c)) || less(a, c));
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_past_the_end_of_a_table_or_out_of_order_are_refused) {
  const Bytes good = encode_values({{{"a", "s"}, 1}, {{"b", "s"}, 2}});
  const auto with = [&](std::initializer_list<int> from, std::initializer_list<int> to) {
    Bytes bytes = good;
    const auto as_bytes = [](int number) { return static_cast<std::byte>(number); };
    std::vector<std::byte> old, fresh;
    std::ranges::transform(from, std::back_inserter(old), as_bytes);
    std::ranges::transform(to, std::back_inserter(fresh), as_bytes);
    const auto at = std::find_end(bytes.begin(), bytes.end(), old.begin(), old.end());
    BOOST_REQUIRE(at != bytes.end());
    std::ranges::copy(fresh, at);
    return bytes;
  };
  const auto says = [](const std::string& part) {
    return [part](const Error& error) {
      BOOST_TEST_INFO(error.what());
      return error.code() == ErrorCode::transport_failed && std::string(error.what()).find(part) != std::string::npos;
    };
  };
  // The first row is as predicted. The second differs in the value (16), which is number 1.
  BOOST_CHECK_EXCEPTION((void)decode_values(with({0, 16, 1}, {0, 16, 2})), Error, says("past the end of the values"));
  BOOST_CHECK_EXCEPTION((void)decode_values(with({0, 16, 1}, {0, 16, 0})), Error, says("not in canonical form"));
  BOOST_CHECK_EXCEPTION((void)decode_values(with({0, 16, 1}, {16, 1, 0})), Error, says("not in canonical form"));
  // The name of the second row is that of the first again.
  BOOST_CHECK_EXCEPTION((void)decode_values(with({0, 16, 1}, {0, 1, 1})), Error, says("out of order or repeated"));
  BOOST_CHECK_EXCEPTION((void)decode_values(with({'b'}, {'a'})), Error, says("out of order or repeated"));
}

BOOST_AUTO_TEST_CASE(a_repeated_key_is_refused) {
  BOOST_CHECK_THROW((void)encode_values({{{"a", "b"}, true}, {{"a", "b"}, true}}), Error);
}

BOOST_AUTO_TEST_CASE(a_tensor_whose_bytes_do_not_match_its_shape_is_refused) {
  for (const Extents& shape : {Extents{3}, Extents{}, Extents{Extent{1} << 40, Extent{1} << 40}, Extents{-1}}) {
    const Bytes bytes = encode_values({{{"a", "b"}, TensorValue{DType::f32, shape, Bytes(8)}}});
    BOOST_CHECK_EXCEPTION((void)decode_values(bytes), Error,
                          [](const Error& error) { return error.code() == ErrorCode::transport_failed; });
  }
}

BOOST_AUTO_TEST_CASE(a_tensor_of_an_unknown_type_is_refused_on_both_sides) {
  const TensorValue value{opaque(0x1234), {}, Bytes(0x1234)};
  Bytes bytes = encode_values({{{"a", "b"}, value}});
  BOOST_CHECK((decode_values(bytes) == std::vector<NamedValue>{{{"a", "b"}, value}}));
  const Bytes number{std::byte{0x34}, std::byte{0x12}, std::byte{0x01}, std::byte{0x00}};
  const auto at = std::search(bytes.begin(), bytes.end(), number.begin(), number.end());
  BOOST_REQUIRE(at != bytes.end());
  at[2] = std::byte{0x02};
  BOOST_CHECK_EXCEPTION((void)decode_values(bytes), Error, [](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == ErrorCode::transport_failed &&
           std::string(error.what()).find("an unknown element type") != std::string::npos;
  });
  BOOST_CHECK_THROW((void)encode_values({{{"a", "b"}, TensorValue{DType{20}, {}, {}}}}), Error);
}

BOOST_AUTO_TEST_SUITE_END()
