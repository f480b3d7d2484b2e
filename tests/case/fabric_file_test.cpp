// SPDX-License-Identifier: Apache-2.0
// Fabric files: the content of valid ones, and the user's error message for invalid ones.
#include "case/fabric_file.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>
#include <string>

#include "case/case.hpp"

BOOST_AUTO_TEST_SUITE(fabric_file)

namespace {

using namespace shardwire;

const std::string copy = R"j("copy": {"latency_microseconds": 1, "gigabytes_per_second": 20})j";
const std::string host = R"j("host": {"latency_microseconds": 2.5, "gigabytes_per_second": 100})j";
const std::string network = R"j("network": {"latency_microseconds": 10, "gigabytes_per_second": 50, "links": 2})j";

std::string text(const std::string& first, const std::string& second, const std::string& third) {
  return "{" + first + "," + second + "," + third + "}";
}
std::string with_network(const std::string& fields) {
  return text(copy, host, "\"network\": {" + fields + "}");
}

struct Refusal {
  const char* title;
  std::string text;
  std::string message;  ///< begins with this
};
std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
  return out << refusal.title;
}

const Refusal refused[] = {
    {"no_json", "{", "1:2: syntax error"},
    {"no_object", "[]", "an object is expected, this is array"},
    {"nothing", "{}", "the field 'copy' is missing"},
    {"repeated", text(copy, copy, network), "copy: the key stands twice"},
    {"unknown", text(copy, host, network + ", \"colour\": 1"),
     "colour: unknown field; known are name, sources, ranks_per_host, copy, host, network"},
    {"unknown_with_line_break", text(copy, host, network + ", \"col\\nour\": 1"), "[\"col\\nour\"]: unknown field"},
    {"unit_forgotten", text(R"j("copy": {"latency": 1, "gigabytes_per_second": 20})j", host, network),
     "copy.latency: unknown field; known are latency_microseconds, gigabytes_per_second"},
    {"no_number", text(R"j("copy": {"latency_microseconds": "1", "gigabytes_per_second": 20})j", host, network),
     "copy.latency_microseconds: a number is expected, this is string"},
    {"negative", text(R"j("copy": {"latency_microseconds": -1, "gigabytes_per_second": 20})j", host, network),
     "copy.latency_microseconds: -1 is not from 0 to"},
    {"no_speed", text(R"j("copy": {"latency_microseconds": 1, "gigabytes_per_second": 0})j", host, network),
     "copy.gigabytes_per_second: 0 is not from"},
    {"no_rank_on_a_host", text(copy, host, network + ", \"ranks_per_host\": 0"),
     "ranks_per_host: 0 is not from 1 to 1024"},
    {"source_that_is_no_text", text(copy, host, network + ", \"sources\": [1]"), "sources[0]: "},
    {"no_links", with_network(R"j("latency_microseconds": 1, "gigabytes_per_second": 1, "links": 0)j"),
     "network.links: 0 is not from 1 to 1024"},
    {"missing_links", with_network(R"j("latency_microseconds": 1, "gigabytes_per_second": 1)j"),
     "network: the field 'links' is missing"},
    {"other_number_of_speeds",
     with_network(R"j("latency_microseconds": 1, "gigabytes_per_second": [1, 2], "links": 3)j"),
     "network.gigabytes_per_second: 2 speeds for 3 links"},
    {"bad_speed_in_list", with_network(R"j("latency_microseconds": 1, "gigabytes_per_second": [1, true], "links": 2)j"),
     "network.gigabytes_per_second[1]: a number is expected, this is boolean"},
    {"undersubscribed",
     with_network(R"j("latency_microseconds": 1, "gigabytes_per_second": 1, "links": 1, "oversubscription": 0.5)j"),
     "network.oversubscription: 0.5 is not from 1"},
};

}  // namespace

BOOST_AUTO_TEST_CASE(units_are_those_of_the_field_names) {
  const ClusterModel fabric = parse_fabric(text(copy, host, network + ", \"name\": \"n\""));
  BOOST_TEST(fabric.name == "n");
  BOOST_CHECK_CLOSE_FRACTION(fabric.copy.latency_seconds, 1e-6, 1e-12);
  BOOST_CHECK_CLOSE_FRACTION(fabric.copy.bytes_per_second, 20e9, 1e-12);
  BOOST_CHECK_CLOSE_FRACTION(fabric.host.latency_seconds, 2.5e-6, 1e-12);
  BOOST_CHECK_CLOSE_FRACTION(fabric.network_latency_seconds, 1e-5, 1e-12);
  BOOST_TEST((fabric.nics == std::vector<double>{50e9, 50e9}));
  BOOST_TEST(fabric.host_total == 0);
  BOOST_TEST(fabric.oversubscription == 1);
}

BOOST_AUTO_TEST_CASE(optional_fields_are_read) {
  const ClusterModel fabric = parse_fabric(text(
      copy, R"j("host": {"latency_microseconds": 0, "gigabytes_per_second": 1, "total_gigabytes_per_second": 3})j",
      R"j("network": {"latency_microseconds": 0, "gigabytes_per_second": [1, 2], "links": 2, "oversubscription": 1.5})j"));
  BOOST_CHECK_CLOSE_FRACTION(fabric.host_total, 3e9, 1e-12);
  BOOST_TEST((fabric.nics == std::vector<double>{1e9, 2e9}));
  BOOST_TEST(fabric.oversubscription == 1.5);
  BOOST_TEST(fabric.sources.empty());
  BOOST_TEST(fabric.ranks_per_host == 0);
  const ClusterModel more =
      parse_fabric(text(copy, host, network + R"j(, "sources": ["a data sheet", "a test"], "ranks_per_host": 8)j"));
  BOOST_TEST((more.sources == std::vector<std::string>{"a data sheet", "a test"}));
  BOOST_TEST(more.ranks_per_host == 8);
}

BOOST_DATA_TEST_CASE(a_bad_file_is_refused_with_its_place, boost::unit_test::data::make(refused), sample) {
  BOOST_CHECK_EXCEPTION(parse_fabric(sample.text), CaseError, [&](const CaseError& error) {
    BOOST_TEST_MESSAGE(error.what());
    return std::string(error.what()).starts_with(sample.message);
  });
}

BOOST_AUTO_TEST_SUITE_END()
