// SPDX-License-Identifier: Apache-2.0
// If a rank never joins, all others name it in their timeout errors, whatever the bootstrap. tests/api and
// tests/launchers cover PMIx and MPI.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulation/scenario.hpp"
#include "support/job.hpp"
#include "support/launch_variables.hpp"

BOOST_AUTO_TEST_SUITE(missing)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using shardwire::simulation::Scenario;

namespace {

constexpr int members = 4;
constexpr std::uint16_t port = 29501;

using Variables = std::map<std::string, std::string>;

std::vector<Bootstrap> by_address() {
  std::vector<Bootstrap> all;
  for (int rank = 0; rank < members; ++rank) all.push_back(member(rank, members, port));
  return all;
}

/// Bootstraps from variables with these names for rank and size, and from `more`.
std::vector<Bootstrap> by_variables(const std::string& rank_name, const std::string& size_name, Variables more) {
  more[size_name] = std::to_string(members);
  more["SHARDWIRE_PORT"] = std::to_string(port);
  std::vector<Bootstrap> all;
  for (int rank = 0; rank < members; ++rank) {
    more[rank_name] = std::to_string(rank);
    const Environment environment(more);
    all.push_back(bootstrap_from_env());
  }
  return all;
}

/// A store in memory.
class OneValue final : public KeyValueStore {
 public:
  void put(const std::string&, const Bytes& value) override { value_ = value; }
  std::optional<Bytes> get(const std::string&, Duration) override { return value_; }

 private:
  std::optional<Bytes> value_;
};

std::vector<Bootstrap> by_store() {
  std::vector<Bootstrap> all = by_address();
  all[0].local_size = members;
  all[0].store = std::make_shared<OneValue>();
  for (Bootstrap& one : all) one.store = all[0].store;
  return all;
}

const char* const methods[] = {"address", "torchrun", "mpirun", "mpich", "srun"};

std::vector<Bootstrap> bootstraps(const std::string& method) {
  if (method == "torchrun") return by_variables("RANK", "WORLD_SIZE", {{"MASTER_ADDR", "127.0.0.1"}});
  if (method == "mpirun") {
    return by_variables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                        {{"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(members)}});
  }
  if (method == "mpich") return by_variables("PMI_RANK", "PMI_SIZE", {{"MASTER_ADDR", "127.0.0.1"}});
  if (method == "srun") {
    return by_variables("SLURM_PROCID", "SLURM_NTASKS", {{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "1"}});
  }
  return by_address();
}

}  // namespace

BOOST_DATA_TEST_CASE(member_0_that_never_comes_is_named_by_its_deadline, boost::unit_test::data::make(methods),
                     method) {
  const auto all = bootstraps(method);
  Scenario made(members);
  SessionOptions options;
  options.join_timeout = 60s;
  for (int rank = 1; rank < members; ++rank) {
    const auto began = made.now();
    const Error error = failure_of([&] { made.join(all[static_cast<std::size_t>(rank)], options); });
    BOOST_TEST((error.code() == ErrorCode::timed_out));
    BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
    BOOST_TEST(says(error, "where member 0 has to be"), error.what());
    const auto took = made.now() - began;
    BOOST_TEST((took > 30s && took < 61s));  // the real time that it has taken counts too
  }
}

// Joining is no barrier: the first gather is the first call that waits for all.
BOOST_DATA_TEST_CASE(others_that_never_come_are_all_named_to_all,
                     boost::unit_test::data::make(methods) + boost::unit_test::data::make("store"), method) {
  const auto all = std::string(method) == "store" ? by_store() : bootstraps(method);
  Scenario made(members);
  Session sessions[] = {made.join(all[0]), made.join(all[2])};
  made.together({0, 2}, [&](int rank) {
    const Error error = failure_of([&] { sessions[rank / 2].gather("all", {}, 1s); });
    require(error.code() == ErrorCode::timed_out, "timed out");
    require(error.ranks() == std::vector<Rank>{Rank{1}, Rank{3}}, "names both");
    require(says(error, "members 1, 3 did not come"), error.what());
  });
}

BOOST_AUTO_TEST_SUITE_END()
