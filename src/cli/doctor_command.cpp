// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/doctor_case.hpp"
#include "cli/doctor_gpus.hpp"
#include "cli/doctor_host.hpp"
#include "cli/environment.hpp"
#include "cli/job_options.hpp"
#include "cli/output.hpp"
#include "memory/device.hpp"
#include "session/settings.hpp"
#include "shardwire/version.hpp"
#include "transport/rdma.hpp"

namespace shardwire::cli {
namespace {

using Json = nlohmann::json;

struct Words {
  std::string path;
  std::string expected;
  const CLI::Option* expects = nullptr;
  std::string replicas = "spread";
  DoctorOptions options;
};

std::string_view word_for(const TransportFinding& finding) {
  return finding.chosen ? "yes" : finding.viable ? "if named" : "no";
}

void print_json(const TransportFinding& finding) {
  const Json json{{"transport", finding.name}, {"reach", to_string(finding.reach)}, {"viable", finding.viable},
                  {"chosen", finding.chosen},  {"version", finding.version},        {"detail", finding.detail}};
  write_output(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print(const TransportFinding& finding) {
  const std::string says_more = finding.detail == finding.version ? std::string() : finding.detail;
  write_output(fmt::format("  {:<14}{:<10}{:<9}{}{}{}\n", finding.name, word_for(finding), to_string(finding.reach),
                           finding.version, finding.version.empty() || says_more.empty() ? "" : ": ", says_more));
}

void print_json(const CollectiveFinding& finding) {
  const Json json{
      {"collective", finding.name}, {"moves", finding.moves}, {"viable", finding.viable}, {"detail", finding.detail}};
  write_output(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void print(const CollectiveFinding& finding) {
  write_output(fmt::format("  {:<14}{:<10}{:<9}{}\n", finding.name, finding.viable ? "possible" : "no", finding.moves,
                           finding.detail));
}

void print(const InterfaceFinding& finding) {
  write_output(
      fmt::format("  {:<14}{:<10}{}{}\n", finding.name, finding.up ? "up" : "down",
                  finding.addresses.empty() ? "no address" : fmt::format("{}", fmt::join(finding.addresses, ", ")),
                  finding.megabits_per_second > 0 ? fmt::format(", {} Mbit/s", finding.megabits_per_second) : ""));
}

int examine_host(const DoctorOptions& options) {
  const std::string names = options.transport.empty() ? transport_of_environment() : options.transport;
  const std::vector<Hint> hints = find_hints();  // before a fabric's library changes the environment
  const std::string net_devices = environment("UCX_NET_DEVICES").value_or("");
  const std::vector<TransportFinding> transports = find_transports(names);
  const bool reaches = std::ranges::any_of(
      transports, [](const TransportFinding& one) { return one.chosen && one.reach != Reach::process; });
  const GpuFindings gpus = find_gpus(memory::device_runtime());
  std::vector<perf::Flag> flags = perf::find_flags(transport::pinnable_bytes());
  std::ranges::move(flag_gpus(gpus, {}, net_devices), std::back_inserter(flags));
  if (options.json) {
    for (const TransportFinding& one : transports) print_json(one);
    for (const CollectiveFinding& one : find_collectives()) print_json(one);
    print_gpus(gpus, true);
    print_flags(flags, true);
    return reaches ? exit_done : exit_failed;
  }
  write_output(
      fmt::format("shardwire {}; {}\n\n{:<16}{:<10}reaches\n", version(), describe_machine(), "transport", "used"));
  for (const TransportFinding& one : transports) print(one);
  write_output(fmt::format("\n{:<16}{:<10}moves\n", "collective", "used"));
  for (const CollectiveFinding& one : find_collectives()) print(one);
  write_output("\ninterface (SHARDWIRE_INTERFACE names the one to use)\n");
  for (const InterfaceFinding& one : find_interfaces()) print(one);
  print_gpus(gpus, false);
  write_output("\nhere\n");
  for (const Hint& hint : hints) write_output(fmt::format("  {:<14}{}\n", hint.about, hint.says));
  print_flags(flags, false);
  if (!reaches) {
    write_output(fmt::format("\nNothing that was asked for ({}) works here and reaches another process.\n", names));
  }
  return reaches ? exit_done : exit_failed;
}

int run(const Words& words) {
  DoctorOptions options = words.options;
  options.replicas = parse_replicas(words.replicas);
  if (words.expects->count() > 0) options.expected = parse_expectation(words.expected);
  if (words.path.empty() && options.expected) throw UsageError("--expect: takes a CASE, whose paths are judged");
  if (words.path.empty() && options.replicas == Replicas::first) {
    throw UsageError("--replicas first: takes a CASE, whose sources are chosen");
  }
  if (words.path.empty() && options.measure) throw UsageError("--measure: takes a CASE, whose state is moved");
  options.measure |= options.expected && options.expected->of_speed();
  return words.path.empty() ? examine_host(options) : examine_case(words.path, options);
}

}  // namespace

std::function<int()> declare_doctor(CLI::App& app) {
  const auto words = std::make_shared<Words>();
  app.add_option("CASE", words->path,
                 "case file, or - for standard input: show the path between each pair of ranks. Without it: what works "
                 "in this process");
  app.add_option("--transport", words->options.transport, "names of transports (default: SHARDWIRE_TRANSPORT or auto)")
      ->type_name(some_of(transport_names()));
  app.add_flag("--measure", words->options.measure,
               "with a CASE: move its state, show for each pair of ranks and each target rank the measured time and "
               "speed beside the expected ones, and flag a rank that takes more than four times as long as expected");
  add_replicas(app, words->replicas);
  words->expects =
      app.add_option("--expect", words->expected,
                     "with a CASE: exit with 1 unless each path between ranks is over this transport and within these "
                     "speeds, and name each that is not; a speed moves the state as --measure does")
          ->type_name("floor=GB/s,ceiling=GB/s,transport=NAME");
  app.add_flag("--json", words->options.json,
               "a line of JSON for each transport, collective, GPU and flag, or for each path, and with --measure for "
               "each port and target rank");
  return [words] { return run(*words); };
}

}  // namespace shardwire::cli
