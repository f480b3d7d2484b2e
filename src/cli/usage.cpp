// SPDX-License-Identifier: Apache-2.0
#include "cli/usage.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "cli/color.hpp"
#include "cli/completion.hpp"
#include "shardwire/version.hpp"
#include "support/nearest.hpp"

namespace shardwire::cli {
namespace {

struct ExitMeaning {
  Exit code;
  std::string_view meaning;
};
// docs/failures.md has the same.
constexpr ExitMeaning exit_meanings[] = {
    {exit_done, "done; `run`, `drill` and `perf` have verified every element that moved"},
    {exit_failed, "the operation failed"},
    {exit_usage, "wrong usage or case file"},
    {exit_interrupted, "interrupted"},
};

// The command and subcommands that the words chose, outermost first.
std::vector<const CLI::App*> chosen(const CLI::App& app) {
  std::vector<const CLI::App*> chain{&app};
  while (!chain.back()->get_subcommands().empty()) chain.push_back(chain.back()->get_subcommands().front());
  return chain;
}

std::string unknown_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // former names
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string given = word.substr(0, word.find('='));
  const std::vector<std::string_view> known(names.begin(), names.end());
  return fmt::format("the option {} is unknown{}", given, support::suggestion(given, known));
}

std::string unknown_word(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  if (names.empty()) return fmt::format("'{}' is one word too many", word);
  return fmt::format("there is no command '{}'{}", word,
                     support::known_words(word, fmt::format("{}", fmt::join(names, ", "))));
}

}  // namespace

std::string help_footer(std::span<const Example> examples) {
  std::string text = "Exit status:\n";
  for (const ExitMeaning& one : exit_meanings) {
    text += fmt::format("  {:<5}{}\n", static_cast<int>(one.code), one.meaning);
  }
  std::size_t width = 0;
  for (const Example& one : examples) width = std::max(width, one.line.size());
  text += "\nExamples:";
  for (const Example& one : examples) text += fmt::format("\n  {:<{}}  {}", one.line, width, one.what);
  return text;
}

CLI::App* add_command(CLI::App& app, const Command& command) {
  CLI::App* const sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
  sub->set_version_flag("--version", fmt::format("shardwire {}", version()));
  sub->add_option_function<std::string>(
         "--color", choose_color, "colors in texts for people (default: auto, on a terminal unless NO_COLOR is set)")
      ->type_name(one_of(color_words));
  sub->footer(help_footer(command.examples));
  return sub;
}

std::shared_ptr<const std::function<int()>> add_actions(CLI::App& app, std::span<const Command> actions) {
  app.require_subcommand(0, 1);  // so that a misspelt one is named instead of "a subcommand is required"
  const auto chosen = std::make_shared<std::function<int()>>();  // owners: callbacks of the parser and the run
  for (const Command& action : actions) {
    CLI::App* const sub = add_command(app, action);
    sub->parse_complete_callback([run = action.declare(*sub), chosen] { *chosen = run; });
  }
  return chosen;
}

std::string names_of(std::span<const Command> actions) {
  std::string names;
  for (const Command& action : actions) names += fmt::format("{}{}", names.empty() ? "" : ", ", action.name);
  return names;
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<const CLI::App*> chain = chosen(app);
  // A misspelt option also looks like a missing one.
  const bool may_be_misspelt = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                               dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  std::string why = error.what();
  for (const CLI::App* one : chain) {
    const std::vector<std::string> left = one->remaining();
    if (!may_be_misspelt || left.empty()) continue;
    const bool is_option = left.front().size() > 1 && left.front().front() == '-';
    why = is_option ? unknown_option(*one, left.front()) : unknown_word(*one, left.front());
    break;
  }
  std::vector<std::string> names;
  for (const CLI::App* one : chain) names.push_back(one->get_name());
  const std::string command = fmt::format("{}", fmt::join(names, " "));
  return fmt::format("{}{}{}\nRun '{} --help' for more information.", fmt::join(names.begin() + 1, names.end(), " "),
                     names.size() > 1 ? ": " : "", why, command);
}

}  // namespace shardwire::cli
