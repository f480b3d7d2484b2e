// SPDX-License-Identifier: Apache-2.0
#include "shardwire/tensor.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sstream>

BOOST_AUTO_TEST_SUITE(tensor)

using namespace shardwire;

namespace {

const std::vector<std::string> names{"f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2",
                                     "i64", "i32", "i16", "i8",   "u8",     "bool"};
const std::vector<int> sizes{8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 1, 1};

}  // namespace

BOOST_DATA_TEST_CASE(a_dtype_has_its_name_and_size, boost::unit_test::data::make(names) ^ sizes, name, size) {
  const auto dtype = parse_dtype(name);
  BOOST_REQUIRE(dtype.has_value());
  BOOST_TEST(to_string(*dtype) == name);
  BOOST_TEST(item_size(*dtype) == static_cast<ByteCount>(size));
}

BOOST_AUTO_TEST_CASE(an_unknown_dtype_is_absent) {
  BOOST_TEST(!parse_dtype("float32").has_value());
  BOOST_TEST(!parse_dtype("").has_value());
}

BOOST_AUTO_TEST_CASE(a_key_reads_as_name_and_state) {
  BOOST_TEST(to_string(TensorKey{"layers.3.weight", "exp_avg"}) == "layers.3.weight:exp_avg");
}

BOOST_AUTO_TEST_SUITE_END()
