// SPDX-License-Identifier: Apache-2.0
#include "perf/program.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <utility>

namespace shardwire::perf {

Program::Program(std::string name, const std::string& description, std::string& commit)
    : name_(std::move(name)), app_(description, name_) {
  app_.add_option("--commit", commit, "commit of the rows (default: the one this was built from)");
}

int Program::run(int argc, char** argv, const std::function<int()>& body) {
  try {
    app_.parse(argc, argv);
    return body();
  } catch (const CLI::Success& asked) {  // --help
    return app_.exit(asked);
  } catch (const CLI::Error& error) {
    complain(error.what());
    return 2;
  } catch (const std::exception& error) {
    complain(error.what());
    return 1;
  }
}

void Program::complain(const std::string& text) const {
  fmt::print(stderr, "{}: {}\n", name_, text);
}

void print_row(const nlohmann::ordered_json& row) {
  fmt::print("{}\n", row.dump());
  std::fflush(stdout);
}

}  // namespace shardwire::perf
