// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace shardwire::cli {

/// What is wrong with a command line that `app` refused, and where help is: "plan: the option --jsno is unknown ..".
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace shardwire::cli
