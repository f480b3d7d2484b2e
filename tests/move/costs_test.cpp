// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include <boost/test/unit_test.hpp>

#include <unistd.h>
#include <filesystem>
#include <fstream>

#include "shardwire/error.hpp"

using namespace shardwire;

namespace {

struct File {
  std::string path = (std::filesystem::temp_directory_path() / ("costs-" + std::to_string(::getpid()))).string();
  ~File() { std::filesystem::remove(path); }
  void write(const std::string& text) const { std::ofstream(path) << text; }
};

bool is_refused(const File& file) {
  try {
    (void)load_costs(file.path);
    return false;
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_argument &&
           std::string(error.what()).find(file.path) != std::string::npos;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(costs)

BOOST_AUTO_TEST_CASE(what_is_saved_is_loaded_and_the_rest_keeps_its_default) {
  const File file;
  const WayCost cost{.latency_seconds = 1.5e-5, .run_seconds = 2e-8, .bytes_per_second = 3.25e9};
  save_costs(file.path, "a machine", {{Reach::network, Way::packed, cost}});
  const CostModel model = load_costs(file.path);
  BOOST_TEST((model.at(Reach::network, Way::packed) == cost));
  BOOST_TEST((model.at(Reach::host, Way::packed) == CostModel().at(Reach::host, Way::packed)));
  BOOST_TEST((model != CostModel()));
}

BOOST_AUTO_TEST_CASE(seconds_grow_with_bytes_and_runs) {
  const WayCost cost{.latency_seconds = 1, .run_seconds = 0.5, .bytes_per_second = 100};
  BOOST_TEST(cost.seconds(0, 0) == 1.0);
  BOOST_TEST(cost.seconds(200, 4) == 5.0);
}

BOOST_AUTO_TEST_CASE(names_are_read_back) {
  for (std::size_t way = 0; way < way_count; ++way) {
    BOOST_TEST((way_from(to_string(static_cast<Way>(way))) == static_cast<Way>(way)));
  }
  BOOST_TEST(!way_from("teleported").has_value());
  BOOST_TEST(!reach_from("").has_value());
}

BOOST_AUTO_TEST_CASE(files_that_are_none_are_refused_by_name) {
  const File file;
  BOOST_TEST(is_refused(file));  // there is none
  const std::string good =
      R"("reach":"host","way":"mapped","latency_seconds":0,"run_seconds":0,"bytes_per_second":1e9)";
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string(R"({"format":"other","costs":[]})"),
        std::string(R"({"format":"shardwire costs 1"})"),
        R"({"format":"shardwire costs 1","costs":[{"reach":"moon",)" + good.substr(15) + "}]}",
        R"({"format":"shardwire costs 1","costs":[{)" + good.substr(0, good.rfind(',')) + "}]}",
        R"({"format":"shardwire costs 1","costs":[{)" + good + R"(,"bytes_per_second":0}]})"}) {
    file.write(text);
    BOOST_TEST(is_refused(file), text);
  }
  file.write(R"({"format":"shardwire costs 1","costs":[{)" + good + "}]}");
  BOOST_TEST(load_costs(file.path).at(Reach::host, Way::mapped).bytes_per_second == 1e9);
}

BOOST_AUTO_TEST_SUITE_END()
