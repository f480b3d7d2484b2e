// SPDX-License-Identifier: Apache-2.0
#include "cli/case_make.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "case/case.hpp"
#include "case/made_case.hpp"
#include "case/model_config.hpp"
#include "case/safetensors.hpp"
#include "case/text_file.hpp"
#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/output.hpp"
#include "cli/run_report.hpp"
#include "cli/text.hpp"
#include "support/list_of.hpp"
#include "support/nearest.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

struct MakeWords {
  std::string path;
  std::string source;
  std::string target;
  std::string optimizer;
  std::string output;
};

std::shared_ptr<MakeWords> add_options(CLI::App& app, const std::string& file) {
  const auto words = std::make_shared<MakeWords>();  // owners: the options and the run
  words->optimizer = optimizer_names().substr(0, optimizer_names().find(','));
  app.add_option("FILE", words->path, file)->required();
  app.add_option(
         "--source", words->source,
         "layout of the ranks that hold the state, such as fsdp=8,tp=2: one of fsdp=S, hsdp=RxS (R replicas of S "
         "shards) and ddp=N, with tp=N inside; ep=N divides the shards into groups of experts")
      ->required();
  app.add_option("--target", words->target, "layout of the ranks that want it, in the same words")->required();
  app.add_option("--optimizer", words->optimizer, fmt::format("whose states there are (default: {})", words->optimizer))
      ->type_name(one_of(optimizer_names()));
  app.add_option("--output", words->output, "write the case to this file (default: standard output)")
      ->type_name(file_type);
  return words;
}

void write_case(const std::string& path, const std::string& text) {
  const Case job = parse_case(text);  // refuses what the reader would refuse
  if (path.empty()) {
    write_output(text);
    return;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{} could not be written", path));
  write_output(fmt::format("{} has {}, {} and {}\n", path, support::counted(job.tensors, "tensor"),
                           support::counted(job.source.ranks, "source rank"),
                           support::counted(job.target.ranks, "target rank")));
}

// `read` gives the name of the model and its tensors; it may look at the degrees.
template <typename Read>
int make(const MakeWords& words, Read read) {
  if (fmt::format(", {}, ", optimizer_names()).find(fmt::format(", {}, ", words.optimizer)) == std::string::npos) {
    throw UsageError(fmt::format("--optimizer: '{}' is unknown{}", words.optimizer,
                                 support::known_words(words.optimizer, optimizer_names())));
  }
  MadeCase made;
  made.optimizer = words.optimizer;
  made.source = parse_degrees("--source", words.source);
  made.target = parse_degrees("--target", words.target);
  if (!words.output.empty()) require_writable("--output", words.output);
  read(made);
  made.name = fmt::format("{}: {} to {}, {}", made.name, words.source, words.target, words.optimizer);
  try {
    write_case(words.output, case_text(made));
  } catch (const CaseError& error) {
    throw CaseError(fmt::format("{}: {}", shown_name(words.path), error.what()));
  }
  return exit_done;
}

void read_config(const MakeWords& words, MadeCase& made) {
  const Model model = load_model_config(words.path);
  made.name = model.name;
  made.tensors = tensors_of(model, model.layers, true);
}

void read_index(const MakeWords& words, MadeCase& made) {
  Checkpoint checkpoint = load_checkpoint(words.path);
  made.name = "checkpoint";
  made.tensors = std::move(checkpoint.tensors);
  if (checkpoint.left_out > 0) {
    support::write_stderr("shardwire: {} of integers left out: no optimizer has states of them\n",
                          support::counted(checkpoint.left_out, "tensor"));
  }
  if (made.source.tensor == 1 && made.target.tensor == 1) return;
  const auto unknown = [](const CaseTensor& one) {
    return one.shape.size() > 1 && split_of(one).dim < 0 && !is_vision(one.fqn);
  };
  const auto count = std::ranges::count_if(made.tensors, unknown);
  if (count == 0) return;
  support::write_stderr("shardwire: each rank of tp has the whole of {}, whose names tell nothing else, such as {}\n",
                        count == 1 ? "1 matrix" : fmt::format("{} matrices", count),
                        printable(std::ranges::find_if(made.tensors, unknown)->fqn));
}

}  // namespace

std::function<int()> declare_from_hf(CLI::App& app) {
  const auto words = add_options(app, "config.json of a model of the transformers library");
  return [words] { return make(*words, [&](MadeCase& made) { read_config(*words, made); }); };
}

std::function<int()> declare_from_safetensors_index(CLI::App& app) {
  const auto words = add_options(app, "model.safetensors.index.json, beside the files that it names");
  return [words] { return make(*words, [&](MadeCase& made) { read_index(*words, made); }); };
}

}  // namespace shardwire::cli
