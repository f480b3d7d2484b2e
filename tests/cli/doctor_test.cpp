// SPDX-License-Identifier: Apache-2.0
// Fabrics that work in this process, as the command prints them and as JSON.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>
#include <sstream>

#include "memory/device.hpp"
#include "support/command.hpp"
#include "transport/collective.hpp"
#include "transport/transport.hpp"

BOOST_AUTO_TEST_SUITE(cli_doctor)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;
using Environment = std::vector<std::pair<std::string, std::string>>;

const Environment plain{{"SHARDWIRE_TRANSPORT", ""}, {"UCX_TLS", ""}};

std::vector<Json> rows(const CommandResult& result) {
  std::vector<Json> all;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
  return all;
}

bool has(const CommandResult& result, const std::string& text) {
  return result.out.find(text) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_transport_of_this_build_is_a_row_with_its_version_or_the_reason) {
  const CommandResult result = run_command({"doctor", "--json"}, "", plain);
  BOOST_TEST(result.exit_code == 0, result.err);
  BOOST_TEST(result.err == "");
  std::vector<Json> found = rows(result);
  std::erase_if(found, [](const Json& row) { return !row.contains("transport"); });
  const auto known = shardwire::transport::registered();
  BOOST_REQUIRE(found.size() == known.size());
  for (std::size_t i = 0; i < known.size(); ++i) {
    const bool viable = known[i].probe(shardwire::transport::Asked::by_name).viable;
    BOOST_TEST(found[i]["transport"] == std::string(known[i].name));
    BOOST_TEST(found[i]["reach"] == std::string(to_string(known[i].reach)));
    BOOST_TEST(found[i]["viable"] == viable);
    BOOST_TEST(found[i]["version"].get<std::string>().empty() != viable);
    BOOST_TEST(found[i]["detail"] != "");
  }
  const auto chosen = [&](const std::string& name) {
    return std::ranges::find_if(found, [&](const Json& row) { return row["transport"] == name; })->at("chosen");
  };
  BOOST_TEST(chosen("tcp") == true);
  BOOST_TEST(chosen("loopback") == false);  // loopback is never chosen by default
}

BOOST_AUTO_TEST_CASE(people_read_of_interfaces_and_limits_too) {
  const CommandResult result =
      RunningCommand(
          {"/bin/sh", "-c",
           "ulimit -S -n 77; ulimit -l 64; [ \"$(id -u)\" != 0 ] || set -- setpriv --bounding-set=-ipc_lock; "
           "exec \"$@\" \"$0\" doctor",
           command_path()},
          "", {{"SHARDWIRE_TRANSPORT", "tcp"}, {"UCX_TLS", "self"}, {"FI_PROVIDER", "tcp"}})
          .wait();
  BOOST_TEST(result.exit_code == 0, result.err);
  for (const char* text :
       {"\n  tcp           yes       network  tcp 1", "\n  shm           if named", "127.0.0.1",
        "\n  descriptors   77 (hard limit ", "\n  locked memory 64 KiB",
        ": raise the limit (ulimit -l unlimited; docker: --ulimit memlock=-1)", "\n  memory        arenas up to ",
        "ptrace_scope: ", "\n  RDMA  ", "SHARDWIRE_TRANSPORT=tcp", "UCX_TLS=self", "FI_PROVIDER=tcp"}) {
    BOOST_TEST(has(result, text), "no '" << text << "' in\n" << result.out);
  }
  BOOST_TEST(!has(result, "UCX_TLS is not set"));
  BOOST_TEST(!has(result, "FI_MR_CACHE"));  // the library sets it, not the user
}

BOOST_AUTO_TEST_CASE(each_gpu_is_a_row_or_the_reason_why_there_is_none) {
  std::vector<Json> found = rows(run_command({"doctor", "--json"}, "", plain));
  std::erase_if(found, [](const Json& row) { return !row.contains("gpu"); });
  const auto [runtime, why_not] = shardwire::memory::device_runtime();
  BOOST_REQUIRE(found.size() == static_cast<std::size_t>(runtime ? runtime->device_count() : 1));
  if (runtime) {
    BOOST_TEST(found[0]["gpu"] == 0);
    BOOST_TEST(found[0]["version"] == runtime->version());
  } else {
    BOOST_TEST(found[0]["gpu"].is_null());
    BOOST_TEST(found[0]["why_none"] == why_not);
    const CommandResult people = run_command({"doctor"}, "", plain);
    BOOST_TEST(has(people, "\nGPU\n  none          " + why_not + "\n"), people.out);
  }
}

BOOST_AUTO_TEST_CASE(it_fails_when_no_other_process_is_reached) {
  for (const bool variable : {false, true}) {
    const CommandResult result = variable ? run_command({"doctor"}, "", {{"SHARDWIRE_TRANSPORT", "loopback"}})
                                          : run_command({"doctor", "--transport", "loopback"}, "", plain);
    BOOST_TEST(result.exit_code == 1);
    BOOST_TEST(has(result, "Nothing that was asked for (loopback) works here and reaches another process"), result.out);
    BOOST_TEST(has(result, "\n  loopback      yes"), result.out);
    BOOST_TEST(has(result, "\n  tcp           if named"), result.out);
  }
}

BOOST_AUTO_TEST_CASE(every_collective_of_this_build_is_a_row_with_its_version_or_the_reason) {
  std::vector<Json> found = rows(run_command({"doctor", "--json"}, "", plain));
  std::erase_if(found, [](const Json& row) { return !row.contains("collective"); });
  const auto known = shardwire::transport::registered_collectives();
  BOOST_REQUIRE(found.size() == known.size());
  for (std::size_t i = 0; i < known.size(); ++i) {
    const shardwire::transport::Viability viability = known[i].probe();
    BOOST_TEST(found[i]["collective"] == std::string(known[i].name));
    BOOST_TEST(found[i]["viable"] == viability.viable);
    BOOST_TEST(found[i]["detail"] == viability.detail);
    BOOST_TEST(!viability.detail.empty());
  }
}

BOOST_AUTO_TEST_CASE(a_transport_that_there_is_not_is_bad_usage) {
  for (const char* names : {"bogus", "tcp,bogus", "tcp,"}) {
    const CommandResult result = run_command({"doctor", "--transport", names}, "", plain);
    BOOST_TEST(result.exit_code == 2);
    BOOST_TEST(result.err.find("is unknown; known are auto, shm, ucx, libfabric, tcp, loopback") != std::string::npos,
               result.err);
    BOOST_TEST(result.out == "");
  }
  BOOST_TEST(run_command({"doctor", "/nonexistent/case.json"}, "", plain).exit_code == 2);
}

BOOST_AUTO_TEST_SUITE_END()
