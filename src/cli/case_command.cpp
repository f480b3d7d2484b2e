// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <string>

#include "case/case.hpp"
#include "cli/case_check.hpp"
#include "cli/case_make.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/usage.hpp"

namespace shardwire::cli {
namespace {

std::function<int()> declare_check(CLI::App& app) {
  const auto path = std::make_shared<std::string>();  // owners: the option and the run
  app.add_option("CASE", *path, "case file, or - for standard input")->required();
  return [path] {
    check_case(*path);
    return exit_done;
  };
}

constexpr Example check_examples[] = {
    {"shardwire case check case.json", "what the file means, and what in it is most likely not meant"},
};
constexpr Example from_hf_examples[] = {
    {"shardwire case from-hf config.json --source fsdp=16 --target fsdp=8,tp=2", "from 16 ranks to a mesh of 8 by 2"},
    {"shardwire case from-hf config.json --source fsdp=8 --target fsdp=6 --optimizer muon", "with the states of Muon"},
};
constexpr Example from_index_examples[] = {
    {"shardwire case from-safetensors-index model.safetensors.index.json --source fsdp=8 --target tp=8",
     "the shapes of a checkpoint"},
};
constexpr Command actions[] = {
    {"check", "Say what a case file means, and what in it is most likely not meant", check_examples, declare_check},
    {"from-hf", "Write the case file of a model, from its config.json of the transformers library", from_hf_examples,
     declare_from_hf},
    {"from-safetensors-index", "Write the case file of a checkpoint, from the headers of its files",
     from_index_examples, declare_from_safetensors_index},
};

}  // namespace

std::function<int()> declare_case(CLI::App& app) {
  const CLI::Option* const schema =
      app.add_flag("--schema")
          ->description("print the JSON Schema (draft 2020-12) of case files, for editors and other checkers");
  const auto chosen = add_actions(app, actions);
  return [schema, chosen] {
    if (schema->count() == 0 && !*chosen) {
      throw UsageError(fmt::format("case: {} or --schema is expected; see shardwire case --help", names_of(actions)));
    }
    if (schema->count() > 0 && *chosen) throw UsageError("case: --schema stands alone");
    if (*chosen) return (*chosen)();
    write_output(case_schema());
    return static_cast<int>(exit_done);
  };
}

}  // namespace shardwire::cli
