// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cli/command.hpp"

namespace shardwire::cli {

/// The end of --help: exit statuses, and the examples. debian/manual makes sections of it.
std::string help_footer(std::span<const Example> examples);
/// Adds a subcommand to `app` with all but its own options and its callback.
CLI::App* add_command(CLI::App& app, const Command& command);
/// Adds the commands of a command. Returns the run of the chosen one, which is empty if none was chosen.
std::shared_ptr<const std::function<int()>> add_actions(CLI::App& app, std::span<const Command> actions);
/// The names of the commands, with commas.
std::string names_of(std::span<const Command> actions);

/// The error of a command line that `app` refused, and where help is: "plan: the option --jsno is unknown ..".
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace shardwire::cli
