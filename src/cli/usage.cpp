// SPDX-License-Identifier: Apache-2.0
#include "cli/usage.hpp"

#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "support/nearest.hpp"

namespace shardwire::cli {
namespace {

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
