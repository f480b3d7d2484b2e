// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/command.hpp"
#include "cli/output.hpp"
#include "control/key_file.hpp"
#include "shardwire/error.hpp"

namespace shardwire::cli {

std::function<int()> declare_key(CLI::App& app) {
  const auto path = std::make_shared<std::string>();  // owners: the option and the run
  app.add_option("FILE", *path, "a file that does not exist yet")->required();
  return [path] {
    try {
      make_key_file(*path);
    } catch (const Error& error) {
      throw UsageError(error.what());
    }
    write_output(
        fmt::format("{} has a new job key, which only you can read. Give all members of a job the same one:\n"
                    "  export SHARDWIRE_JOB_KEY_FILE={}\n",
                    *path, *path));
    return exit_done;
  };
}

}  // namespace shardwire::cli
