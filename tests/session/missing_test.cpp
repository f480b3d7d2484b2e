// SPDX-License-Identifier: Apache-2.0
// If a rank never joins, all others name it in their timeout errors, whatever the bootstrap. tests/api and
// tests/launchers cover PMIx and MPI.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <latch>
#include <map>
#include <string>
#include <vector>

#include "support/job.hpp"
#include "support/launch_variables.hpp"
#include "support/missed_gather.hpp"

BOOST_AUTO_TEST_SUITE(missing)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int members = 4;
constexpr auto patience = 1s;

using Variables = std::map<std::string, std::string>;

std::vector<Bootstrap> by_address(std::uint16_t port) {
  std::vector<Bootstrap> all;
  for (int rank = 0; rank < members; ++rank) all.push_back(member(rank, members, port));
  return all;
}

/// Bootstraps from variables with these names for rank and size, and from `more`.
std::vector<Bootstrap> by_variables(const std::string& rank_name, const std::string& size_name, Variables more,
                                    std::uint16_t port) {
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

const char* const methods[] = {"address", "torchrun", "mpirun", "mpich", "srun"};

std::vector<Bootstrap> bootstraps(const std::string& method) {
  const auto port = free_port();
  if (method == "torchrun") return by_variables("RANK", "WORLD_SIZE", {{"MASTER_ADDR", "127.0.0.1"}}, port);
  if (method == "mpirun") {
    return by_variables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                        {{"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(members)}}, port);
  }
  if (method == "mpich") return by_variables("PMI_RANK", "PMI_SIZE", {{"MASTER_ADDR", "127.0.0.1"}}, port);
  if (method == "srun") {
    return by_variables("SLURM_PROCID", "SLURM_NTASKS", {{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "1"}}, port);
  }
  return by_address(port);
}

SessionOptions hasty() {
  SessionOptions options = quick();
  options.join_timeout = patience;
  return options;
}

}  // namespace

BOOST_DATA_TEST_CASE(member_0_that_never_comes_is_named_by_its_deadline, boost::unit_test::data::make(methods),
                     method) {
  const auto all = bootstraps(method);
  const auto began = std::chrono::steady_clock::now();
  on_members(members, [&](int rank) {
    if (rank == 0) return;
    const Error error = failure_of([&] { Session::join(all[static_cast<std::size_t>(rank)], hasty()); });
    require(error.code() == ErrorCode::timed_out, "timed out");
    require(error.ranks() == std::vector<Rank>{Rank{0}}, "names it");
    require(says(error, "where member 0 has to be"), error.what());
  });
  const auto took = std::chrono::steady_clock::now() - began;
  BOOST_TEST((took >= patience && took < 60s));
}

// Joining is no barrier: the first gather is the first call that waits for all.
BOOST_DATA_TEST_CASE(others_that_never_come_are_all_named_to_all, boost::unit_test::data::make(methods), method) {
  const auto all = bootstraps(method);
  MissedGather gather(2, {Rank{1}, Rank{3}});
  std::latch told(2);
  on_members(members, [&](int rank) {
    if (rank == 1 || rank == 3) return;
    Session session = Session::join(all[static_cast<std::size_t>(rank)], quick());
    const Error error = gather.on(session);
    told.arrive_and_wait();  // member 0 must live until it has named the missing ranks
    require(error.code() == ErrorCode::timed_out, "timed out");
    require(error.ranks() == std::vector<Rank>{Rank{1}, Rank{3}}, "names both");
    require(says(error, "members 1, 3 did not come"), error.what());
  });
}

BOOST_AUTO_TEST_SUITE_END()
