// SPDX-License-Identifier: Apache-2.0
// The file that Prometheus' node_exporter reads.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "support/deadline.hpp"
#include "support/fake_root.hpp"
#include "telemetry/metrics_file.hpp"

BOOST_AUTO_TEST_SUITE(metrics_file)

using namespace shardwire;
using namespace shardwire::telemetry;
using namespace std::chrono_literals;

namespace {

std::shared_ptr<Metrics> fresh() {
  return std::make_shared<Metrics>(Build{"1.2.3", 7, {"tcp"}});
}

/// Writes changes at the end alone, unless an interval is given.
MetricsFile::Setup in(const std::filesystem::path& folder, std::chrono::milliseconds interval = 1h) {
  return {.folder = folder.string(), .run_id = "night", .member = 3, .interval = interval, .patience = 1h};
}

const std::string joined = "shardwire_session_join_duration_seconds_count{shardwire_member=\"3\"} ";

bool says(const std::filesystem::path& path, const std::string& line) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return text.find(line + "\n") != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_name_has_the_run_and_the_member_and_no_folder) {
  BOOST_TEST(metrics_file_name("llama-17", 3) == "shardwire-llama-17-3.prom");
  BOOST_TEST(metrics_file_name("../a b/c", 0) == "shardwire-.._a_b_c-0.prom");
  BOOST_TEST(metrics_file_name("", 12) == "shardwire-default-12.prom");
  BOOST_TEST(metrics_file_name(std::string(256, 'x'), 1'000'000).size() < 255u);
}

BOOST_AUTO_TEST_CASE(zeros_are_written_at_the_start_and_counts_at_the_end) {
  const test::FakeRoot root;
  const auto path = root.path / "shardwire-night-3.prom";
  const auto metrics = fresh();
  std::vector<std::string> failures;
  {
    const MetricsFile file(in(root.path), metrics, [&](const std::string& why) { failures.push_back(why); });
    BOOST_TEST(test::run_until([] {}, [&] { return says(path, joined + "0"); }, 120s));
    metrics->joined(1, std::nullopt);
  }
  BOOST_TEST(says(path, joined + "1"));
  BOOST_TEST(failures.empty());
  const auto files = std::filesystem::directory_iterator(root.path);
  BOOST_TEST(std::distance(begin(files), end(files)) == 1);  // no remains of what was renamed
}

BOOST_AUTO_TEST_CASE(a_change_is_written_while_the_member_lives) {
  const test::FakeRoot root;
  const auto path = root.path / "shardwire-night-3.prom";
  const auto metrics = fresh();
  const MetricsFile file(in(root.path, 1ms), metrics, nullptr);
  metrics->joined(1, std::nullopt);
  BOOST_TEST(test::run_until([] {}, [&] { return says(path, joined + "1"); }, 120s));
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_there_is_reported_once) {
  const test::FakeRoot root;
  std::vector<std::string> failures;
  {
    const MetricsFile file(in(root.path / "none"), fresh(), [&](const std::string& why) { failures.push_back(why); });
  }
  BOOST_REQUIRE(failures.size() == 1u);
  BOOST_TEST(failures.front() == "metrics are not written: " + root.path.string() +
                                     "/none/shardwire-night-3.prom: cannot be opened: No such file or directory");
}

// As the folder of a file server that does not answer. The pipe is opened for writing once this case reads it.
BOOST_AUTO_TEST_CASE(neither_the_start_nor_the_end_waits_for_a_folder_that_hangs) {
  const test::Deadline deadline(120s);
  const test::FakeRoot root;
  const auto path = root.path / "shardwire-night-3.prom";
  const std::string fresh_path = path.string() + ".tmp";
  BOOST_REQUIRE(::mkfifo(fresh_path.c_str(), 0600) == 0);
  MetricsFile::Setup setup = in(root.path);
  setup.patience = 1ms;
  {
    const MetricsFile file(setup, fresh(), [](const std::string& why) { BOOST_ERROR(why); });
  }
  std::ifstream pipe(fresh_path);
  const std::string text(std::istreambuf_iterator<char>(pipe), {});
  BOOST_TEST(text.find(joined + "0\n") != std::string::npos);
  const auto is_over = [&] { return std::filesystem::exists(path); };  // its thread leaves the folder alone
  BOOST_TEST(test::run_until([] {}, is_over, 120s));
}

BOOST_AUTO_TEST_SUITE_END()
