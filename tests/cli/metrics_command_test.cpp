// SPDX-License-Identifier: Apache-2.0
// shardwire metrics
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "support/command.hpp"
#include "support/fake_root.hpp"

BOOST_AUTO_TEST_SUITE(metrics_command)

namespace {

using namespace shardwire::test;

// As a member writes it, in short.
std::string text_of(int member, int restores) {
  const std::string label = "{shardwire_member=\"" + std::to_string(member) + "\"} ";
  return "# HELP shardwire_restore_active Running ones\n# TYPE shardwire_restore_active gauge\n"
         "shardwire_restore_active" +
         label + std::to_string(restores) +
         "\n# HELP shardwire_io_bytes_total Bytes\n# TYPE shardwire_io_bytes_total counter\nshardwire_io_bytes_total" +
         label + "5\n";
}

/// A folder that members have written to.
struct Folder {
  FakeRoot root;
  void write(const std::string& name, int member, int restores, std::chrono::seconds age) const {
    root.write("/" + name, text_of(member, restores));
    std::filesystem::last_write_time(root.path / name, std::filesystem::file_time_type::clock::now() - age);
  }
  [[nodiscard]] CommandResult metrics(std::vector<std::string> options = {}) const {
    options.insert(options.begin(), {"metrics", root.path.string()});
    return run_command(options);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_family_has_the_series_of_all_members_below_one_description) {
  const Folder folder;
  folder.write("shardwire-night-0.prom", 0, 1, std::chrono::seconds(0));
  folder.write("shardwire-night-1.prom", 1, 2, std::chrono::seconds(100));
  folder.root.write("/shardwire-night-2.prom.tmp", text_of(2, 3));
  folder.root.write("/others.prom", text_of(3, 3));
  const CommandResult result = folder.metrics();
  BOOST_TEST(result.exit_code == 0);
  BOOST_TEST(
      result.out ==
      "# HELP shardwire_io_bytes_total Bytes\n# TYPE shardwire_io_bytes_total counter\n"
      "shardwire_io_bytes_total{shardwire_member=\"0\"} 5\nshardwire_io_bytes_total{shardwire_member=\"1\"} 5\n"
      "# HELP shardwire_restore_active Running ones\n# TYPE shardwire_restore_active gauge\n"
      "shardwire_restore_active{shardwire_member=\"0\"} 1\nshardwire_restore_active{shardwire_member=\"1\"} 2\n");
}

BOOST_AUTO_TEST_CASE(the_newest_file_of_a_member_counts) {
  const Folder folder;
  folder.write("shardwire-a-0.prom", 0, 1, std::chrono::seconds(200));
  folder.write("shardwire-b-0.prom", 0, 2, std::chrono::seconds(100));
  folder.write("shardwire-c-d-0.prom", 0, 3, std::chrono::seconds(300));
  const std::string out = folder.metrics().out;
  BOOST_TEST(out.find("shardwire_restore_active{shardwire_member=\"0\"} 2\n") != std::string::npos, out);
  BOOST_TEST(out.find("shardwire_restore_active{") == out.rfind("shardwire_restore_active{"), out);
}

BOOST_AUTO_TEST_CASE(files_of_members_that_are_gone_are_left_out_on_request) {
  const Folder folder;
  folder.write("shardwire-a-0.prom", 0, 1, std::chrono::seconds(0));
  folder.write("shardwire-a-1.prom", 1, 1, std::chrono::hours(2));
  const std::string out = folder.metrics({"--max-age", "3600"}).out;
  BOOST_TEST(out.find("shardwire_member=\"0\"") != std::string::npos, out);
  BOOST_TEST(out.find("shardwire_member=\"1\"") == std::string::npos, out);
  BOOST_TEST(folder.metrics({"--max-age", "-1"}).exit_code == 2);
  BOOST_TEST(folder.metrics({"--max-age", "-1"}).err.find("--max-age: seconds are expected, 0 or more") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_empty_folder_has_no_metrics_and_none_is_an_error) {
  const Folder folder;
  BOOST_TEST(folder.metrics().exit_code == 0);
  BOOST_TEST(folder.metrics().out.empty());
  const CommandResult none = run_command({"metrics", "/nonexistent"});
  BOOST_TEST(none.exit_code == 2);
  BOOST_TEST(none.err.find("/nonexistent: No such file or directory") != std::string::npos, none.err);
}

BOOST_AUTO_TEST_SUITE_END()
