// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <new>
#include <sstream>
#include <system_error>

#include "case/case.hpp"
#include "cli/color.hpp"
#include "cli/command.hpp"
#include "cli/environment.hpp"
#include "cli/output.hpp"
#include "cli/usage.hpp"
#include "shardwire/error.hpp"
#include "shardwire/version.hpp"
#include "support/stderr.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::cli;

constexpr Example first_examples[] = {
    {"shardwire doctor", "which transports work here"},
    {"shardwire case from-hf config.json --source fsdp=8 --target fsdp=6", "a case file of a model"},
    {"shardwire plan case.json --totals", "the bytes that cross between the ranks of a case"},
    {"shardwire run case.json", "moves them between processes, and checks every element"},
    {"shardwire run --help", "the options of a command"},
};

int fail(int code, const std::string& why) {
  std::fflush(stdout);
  support::write_stderr("{} {}\n", marked("shardwire:", Mark::failure, stderr), why);
  return code;
}

int run(int argc, char** argv) {
  CLI::App app{"Exchange of sharded optimizer state between trainer ranks", "shardwire"};
  app.set_version_flag("--version", fmt::format("shardwire {}", version()));
  app.require_subcommand(0, 1);  // so that a misspelt command is named instead of "a subcommand is required"
  app.footer(help_footer(first_examples));
  std::function<int()> chosen;
  for (const Command& command : commands()) {
    CLI::App* const sub = add_command(app, command);
    sub->parse_complete_callback([run_command = command.declare(*sub), &chosen] { chosen = run_command; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    const int code = app.exit(asked, text, text);
    write_output(text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    return fail(exit_usage, usage_message(app, error));
  }
  if (!chosen) {
    support::write_stderr("{}", app.help());
    return exit_usage;
  }
  report_unknown_environment();
  return chosen();
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_streams();
  // Exits at once without clean-up; a command that must clean up handles these signals itself.
  for (const int one : {SIGINT, SIGTERM}) std::signal(one, [](int) { ::_exit(exit_interrupted); });
  try {
    const int code = run(argc, argv);
    finish_output();
    return code;
  } catch (const CaseError& error) {
    return fail(exit_usage, error.what());
  } catch (const UsageError& error) {
    return fail(exit_usage, error.what());
  } catch (const Error& error) {
    return fail(exit_failed, fmt::format("{}: {}", to_string(error.code()), error.what()));
  } catch (const std::bad_alloc&) {
    return fail(exit_failed, "out of memory");
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) == 0) return fail(exit_failed, error.what());
    return fail(exit_failed, "cannot write to standard output: " + error.code().message());
  } catch (const std::exception& error) {
    return fail(exit_failed, error.what());
  }
}
