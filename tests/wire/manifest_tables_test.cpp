// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "wire/manifest_tables.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(manifest_tables)

namespace data = boost::unit_test::data;
using namespace samples;

namespace {

const Bytes word(8);  // an Input needs some message to refer to
const TableSizes sizes{40, 3, 5, 4};

std::vector<std::string> names_of(const Bytes& bytes, std::size_t allowance = 1u << 20) {
  const Input in("Names", word);
  return decode_names(bytes, in, Expansion(0, allowance));
}

std::vector<TensorRow> rows_of(const Bytes& bytes, const TableSizes& of = sizes) {
  Input in("Rows", word);
  return decode_rows(bytes, of, in, "Rows");
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

bool refused(const Error& error) {
  return error.code() == ErrorCode::transport_failed;
}

struct Hostile {
  const char* what;
  Bytes bytes;
};
std::ostream& operator<<(std::ostream& out, const Hostile& hostile) {
  return out << hostile.what;
}

const std::vector<Hostile> hostile_names{
    {"no length", bytes_of({0x00})},
    {"no bytes", bytes_of({0x00, 0x02, 'a'})},
    {"shares what is not there", bytes_of({0x01, 0x01, 'a'})},
    {"shares more than there is", bytes_of({0x00, 0x02, 'a', 'b', 0x03, 0x00})},
    {"a zero byte", bytes_of({0x00, 0x02, 'a', 0x00})},
    {"a length of 2^35", bytes_of({0x00, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01})},
    {"a length that does not end", bytes_of({0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})},
};

// A row begins with the sum of 1 name, 2 state, 4 shape, 8 rule, 16 dtype, for the fields that differ from their
// prediction.
const std::vector<Hostile> hostile_rows{
    {"an unknown kind", bytes_of({0x20})},
    {"no name", bytes_of({0x01})},
    {"a name below the first", bytes_of({0x01, 0x01})},
    {"a name past the last", bytes_of({0x01, 0x50})},
    {"a name far past the last", bytes_of({0x01, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})},
    {"the name after the last", bytes_of({0x03, 0x4e, 0x02, 0x00})},
    {"a state past the last", bytes_of({0x02, 0x03})},
    {"a shape past the last", bytes_of({0x04, 0x05})},
    {"a rule past the last", bytes_of({0x08, 0x04})},
    {"a dtype of 2^32", bytes_of({0x10, 0x80, 0x80, 0x80, 0x80, 0x10})},
};

}  // namespace

BOOST_AUTO_TEST_CASE(names_survive_a_round_trip) {
  Maker maker(test_seed());
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> names = maker.several<std::string>(20, [&] { return maker.text(60); });
    for (std::size_t i = 1; i < names.size(); ++i) {
      if (maker.below(2) == 0) names[i] = names[i - 1].substr(0, maker.below(names[i - 1].size() + 1)) + names[i];
    }
    std::vector<const std::string*> pointers;
    for (const std::string& name : names) pointers.push_back(&name);
    BOOST_CHECK(names_of(encode_names(pointers)) == names);
  }
}

BOOST_DATA_TEST_CASE(bytes_that_are_no_names_are_refused, data::make(hostile_names), sample) {
  BOOST_CHECK_EXCEPTION((void)names_of(sample.bytes), Error, refused);
}

BOOST_AUTO_TEST_CASE(names_that_grow_by_sharing_are_bounded) {
  // Each name shares all of the previous one and adds a byte.
  Bytes bytes;
  for (int length = 0; length < 5000; ++length) {
    if (length >= 128) bytes.push_back(static_cast<std::byte>(length | 128));
    bytes.push_back(static_cast<std::byte>(length >= 128 ? length >> 7 : length));
    bytes.push_back(std::byte{1});
    bytes.push_back(std::byte{'x'});
  }
  BOOST_CHECK_EXCEPTION((void)names_of(bytes, 1u << 30), Error, refused);  // exceeds the limit on names
  // The longest allowed name, and then many that share all of it.
  Bytes many = bytes_of({0x00, 0x80, 0x20});
  many.resize(many.size() + 4096, std::byte{'x'});
  for (int i = 0; i < 100'000; ++i) many.insert(many.end(), {std::byte{0x80}, std::byte{0x20}, std::byte{0}});
  BOOST_CHECK_EXCEPTION((void)names_of(many), Error, refused);
}

BOOST_AUTO_TEST_CASE(rows_in_any_order_survive_a_round_trip) {
  Maker maker(test_seed());
  for (int round = 0; round < 1000; ++round) {
    const std::vector<TensorRow> rows = maker.several<TensorRow>(200, [&] {
      return TensorRow{static_cast<std::uint32_t>(maker.below(sizes.names)),
                       static_cast<std::uint32_t>(maker.below(sizes.states)),
                       static_cast<std::uint32_t>(maker.below(sizes.shapes)),
                       static_cast<std::uint32_t>(maker.below(sizes.rules)), static_cast<std::uint32_t>(maker.dtype())};
    });
    BOOST_CHECK(rows_of(encode_rows(rows, sizes)) == rows);
  }
}

BOOST_AUTO_TEST_CASE(a_parameter_with_its_states_takes_a_few_bytes) {
  std::vector<TensorRow> rows;
  for (std::uint32_t name = 0; name < sizes.names; ++name) {
    for (std::uint32_t state = 0; state < sizes.states; ++state)
      rows.push_back({name, state, name % 5, name % 4, state});
  }
  BOOST_CHECK_LE(encode_rows(rows, sizes).size(), 5 * sizes.names + 2 * sizes.states);
}

BOOST_DATA_TEST_CASE(bytes_that_are_no_rows_are_refused, data::make(hostile_rows), sample) {
  BOOST_CHECK_EXCEPTION((void)rows_of(sample.bytes), Error, refused);
}

BOOST_AUTO_TEST_CASE(rows_without_tables_are_refused) {
  for (const TableSizes& empty :
       {TableSizes{}, TableSizes{0, 1, 1, 1}, TableSizes{1, 0, 1, 1}, TableSizes{1, 1, 0, 1}, TableSizes{1, 1, 1, 0}}) {
    BOOST_CHECK_EXCEPTION((void)rows_of(bytes_of({0x00}), empty), Error, refused);
    BOOST_CHECK_EXCEPTION((void)rows_of(bytes_of({0x1f, 0, 0, 0, 0, 0}), empty), Error, refused);
    BOOST_CHECK(rows_of({}, empty).empty());
  }
}

BOOST_AUTO_TEST_CASE(what_random_bytes_say_is_within_the_tables) {
  Maker maker(test_seed());
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes = maker.bytes(30);
    for (std::byte& byte : bytes) byte &= std::byte{0x1f};
    try {
      for (const TensorRow& row : rows_of(bytes)) {
        BOOST_REQUIRE(row.name < sizes.names && row.state < sizes.states && row.shape < sizes.shapes);
        BOOST_REQUIRE(row.rule < sizes.rules);
      }
    } catch (const Error& error) {
      BOOST_REQUIRE(refused(error));
    }
  }
}

BOOST_AUTO_TEST_CASE(more_rows_than_a_message_may_have_are_refused) {
  const TableSizes large{max_rows + 1, 1, 1, 1};
  BOOST_CHECK_EQUAL(rows_of(Bytes(max_rows), large).size(), max_rows);
  BOOST_CHECK_EXCEPTION((void)rows_of(Bytes(max_rows + 1), large), Error, refused);
}

BOOST_AUTO_TEST_SUITE_END()
