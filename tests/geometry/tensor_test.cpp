// SPDX-License-Identifier: Apache-2.0
#include "geometry/dtypes.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "shardwire/error.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(tensor)

using namespace shardwire;

namespace {

struct Row {
  const char* name;
  ByteCount bytes;
  std::uint32_t number;  // sent to members of other builds: it never changes
};
std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << row.name;
}

const std::vector<Row> rows{
    {"f64", 8, 0},
    {"f32", 4, 1},
    {"f16", 2, 2},
    {"bf16", 2, 3},
    {"f8e4m3", 1, 4},
    {"f8e5m2", 1, 5},
    {"i64", 8, 6},
    {"i32", 4, 7},
    {"i16", 2, 8},
    {"i8", 1, 9},
    {"u8", 1, 10},
    {"bool", 1, 11},
    {"u64", 8, 12},
    {"u32", 4, 13},
    {"u16", 2, 14},
    {"complex128", 16, 15},
    {"complex64", 8, 16},
    {"f8e4m3fnuz", 1, 17},
    {"f8e5m2fnuz", 1, 18},
    {"f8e8m0", 1, 19},
    {"opaque1", 1, 0x10001},
    {"opaque24", 24, 0x10018},
    {"opaque65535", 65535, 0x1ffff},
};

constexpr std::uint32_t no_types[] = {20, 0xffff, 0x10000, 0x20000, 0xffffffff};

}  // namespace

BOOST_DATA_TEST_CASE(a_dtype_has_its_name_size_and_number, boost::unit_test::data::make(rows), row) {
  const auto dtype = parse_dtype(row.name);
  BOOST_REQUIRE(dtype.has_value());
  BOOST_TEST(to_string(*dtype) == row.name);
  BOOST_TEST(item_size(*dtype) == row.bytes);
  BOOST_TEST(static_cast<std::uint32_t>(*dtype) == row.number);
  BOOST_TEST(is_dtype(*dtype));
}

BOOST_AUTO_TEST_CASE(an_unknown_dtype_is_absent) {
  for (const char* name : {"float32", "", "opaque", "opaque0", "opaque016", "opaque+1", "opaque1x", "opaque65536",
                           "opaque99999999999999999999", "Opaque1", "complex"}) {
    BOOST_TEST(!parse_dtype(name).has_value(), name);
  }
}

BOOST_DATA_TEST_CASE(a_number_that_is_no_type_is_refused, boost::unit_test::data::make(no_types), number) {
  BOOST_TEST(!is_dtype(DType{number}));
  test::refused(ErrorCode::invalid_argument, "is unknown", [&] { item_size(DType{number}); });
  BOOST_TEST(to_string(DType{number}) == "dtype " + std::to_string(number));
}

BOOST_AUTO_TEST_CASE(an_opaque_type_is_its_size) {
  static_assert(opaque(16) == opaque(16));
  static_assert(opaque(16) != opaque(8));
  BOOST_TEST((opaque(1) != DType::u8));
  test::refused(ErrorCode::invalid_argument, "an opaque element of 0 bytes; it has 1 to 65535", [] { opaque(0); });
  test::refused(ErrorCode::invalid_argument, "of 65536 bytes", [] { opaque(65536); });
}

BOOST_AUTO_TEST_CASE(the_names_of_all_types_are_listed) {
  const std::string names = dtype_names();
  BOOST_TEST(names.starts_with("f64, f32, "));
  BOOST_TEST(names.ends_with("f8e8m0, opaque1 to opaque65535"));
}

BOOST_AUTO_TEST_CASE(names_of_other_libraries_stand_for_types) {
  for (const char* name : {"float64",
                           "float32",
                           "float16",
                           "bfloat16",
                           "float8_e4m3fn",
                           "float8_e5m2",
                           "float8_e4m3fnuz",
                           "float8_e5m2fnuz",
                           "float8_e8m0fnu",
                           "int64",
                           "int32",
                           "int16",
                           "int8",
                           "uint64",
                           "uint32",
                           "uint16",
                           "uint8",
                           "bool",
                           "complex128",
                           "complex64",
                           "double",
                           "float",
                           "half"}) {
    const auto meant = parse_dtype(dtype_meant_by(std::string("torch.") + name));
    BOOST_TEST(meant.has_value(), name);
  }
  BOOST_TEST(dtype_meant_by("float32") == "f32");
  BOOST_TEST(dtype_meant_by("BF16") == "bf16");
  BOOST_TEST(dtype_meant_by("bf61") == "bf61");
}

BOOST_AUTO_TEST_CASE(a_key_reads_as_name_and_state) {
  BOOST_TEST(to_string(TensorKey{"layers.3.weight", "exp_avg"}) == "layers.3.weight:exp_avg");
}

BOOST_AUTO_TEST_SUITE_END()
