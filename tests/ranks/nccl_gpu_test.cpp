// SPDX-License-Identifier: Apache-2.0
// Rounds of the installed NCCL, with all ranks on one GPU.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support/command.hpp"

BOOST_AUTO_TEST_SUITE(nccl_gpu)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;

// As many ranks as NCCL allows on one GPU; one tensor is sent in runs of 2 KiB, the other one in place.
const char* const rows_to_columns = R"j({
  "states": ["m"], "dtype": "f32",
  "tensors": [{"fqn": "strided", "shape": [512, 1024]}, {"fqn": "whole", "shape": [2, 4194304]}],
  "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 2, "rules": {"strided": {"chunk": 1, "over": 2}, "*": {"replicated": true}}}
})j";

boost::test_tools::assertion_result nccl_works(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(false);
  std::istringstream rows(run_command({"doctor", "--json"}).out);
  for (std::string line; std::getline(rows, line);) {
    const Json row = Json::parse(line);
    if (row.value("collective", "") != "nccl") continue;
    result = boost::test_tools::assertion_result(row.at("viable").get<bool>());
    result.message() << "rounds of NCCL: " << row.at("detail").get<std::string>();
  }
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_of_one_gpu_exchange_in_rounds_of_nccl, *boost::unit_test::precondition(nccl_works)) {
  const std::string path = "nccl_gpu_test_report." + std::to_string(::getpid()) + ".json";
  // NCCL is known to hang here (transport/README.md), so the command has a time limit.
  const CommandResult result =
      run_command({"run", "-", "--memory", "cuda", "--transport", "nccl", "--verify", "digest", "--repeat", "2",
                   "--timeout", "60", "--report", path},
                  rows_to_columns, {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_MAX_CTAS", "4"}});
  BOOST_TEST(result.exit_code == 0, result.err);
  std::ifstream file(path);
  const Json report = file ? Json::parse(file) : Json();
  std::remove(path.c_str());
  BOOST_REQUIRE(report.is_object());
  BOOST_TEST(report.at("rounds").at("count").get<int>() > 0, report.dump());
}

BOOST_AUTO_TEST_SUITE_END()
