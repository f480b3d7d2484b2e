// SPDX-License-Identifier: Apache-2.0
// Members of `shardwire run --transport nccl`, as threads, over fakes of NCCL and of its devices.
#include <boost/test/unit_test.hpp>

#include <array>
#include <chrono>
#include <string>

#include "case/case.hpp"
#include "cli/run_worker.hpp"
#include "support/deadline.hpp"
#include "support/fake_nccl_devices.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(run_nccl)

using namespace shardwire;
using namespace shardwire::cli;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int member_count = 4;

// The last rank holds nothing.
const char* const cross = R"j({
  "dtype": "bf16", "states": ["m", "v"], "dtypes": {"v": "f32"}, "scalars": {"step": 1000, "lr": 0.1},
  "tensors": [{"fqn": "w", "shape": [40, 60]}, {"fqn": "n", "shape": [1]}],
  "source": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";

}  // namespace

BOOST_AUTO_TEST_CASE(all_members_exchange_and_find_every_element_right) {
  const Deadline deadline(120s);
  UsedNccl devices;
  const Case job = parse_case(cross);
  RunOptions options;
  options.transport = "tcp";
  options.memory = MemoryKind::cuda;
  options.exchange = true;
  options.repeat = 2;
  options.staging_bytes = 64 << 10;
  const auto port = free_port();
  std::array<MemberResult, member_count> results;
  on_members(member_count, [&](int number) {
    results[static_cast<std::size_t>(number)] =
        run_worker({job, options, role_of(job, options, number), member(number, member_count, port),
                    [](const MemberProgress&) {}, [](Session*, const MemberResult&, Duration) {}});
  });
  for (const MemberResult& result : results) {
    BOOST_TEST(result.verified, (result.errors.empty() ? "" : result.errors.front().message));
    BOOST_TEST(result.walls.size() == 2U);
    BOOST_TEST(result.report.rounds > 0U);
    BOOST_TEST(result.report.rounds_bytes == result.report.moved_bytes);
  }
  BOOST_TEST(FakeNccl::instance().made() == member_count);
}

BOOST_AUTO_TEST_SUITE_END()
