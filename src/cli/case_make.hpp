// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardwire::cli {

/// `case from-hf` and `case from-safetensors-index`: they write a case file.
std::function<int()> declare_from_hf(CLI::App& app);
std::function<int()> declare_from_safetensors_index(CLI::App& app);

}  // namespace shardwire::cli
