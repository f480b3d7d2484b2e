// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/completion.hpp"
#include "cli/output.hpp"
#include "support/nearest.hpp"

namespace shardwire::cli {
namespace {

constexpr std::string_view several = ",..";  // ends the type of a list

// A command, and the words that choose it: "shardwire case check".
struct Level {
  std::string words;
  const CLI::App* app;
};

std::vector<Level> levels_of(const CLI::App& root) {
  std::vector<Level> levels{{root.get_name(), &root}};
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const Level above = levels[i];  // a copy: the list grows
    for (const CLI::App* one : above.app->get_subcommands({})) {
      levels.push_back({fmt::format("{} {}", above.words, one->get_name()), one});
    }
  }
  return levels;
}

// All but the first, which no words choose: 'shardwire plan' | 'shardwire run'
std::string quoted_levels(const std::vector<Level>& levels, std::string_view separator) {
  std::string text;
  for (std::size_t i = 1; i < levels.size(); ++i) {
    text += fmt::format("{}'{}'", i == 1 ? "" : separator, levels[i].words);
  }
  return text;
}

// The options that --help lists.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* one) { return !one->get_positional() && !one->get_group().empty(); });
}

// Null: the command takes none.
const CLI::Option* argument_of(const CLI::App& app) {
  const auto arguments = app.get_options([](const CLI::Option* one) { return one->get_positional(); });
  return arguments.empty() ? nullptr : arguments.front();
}

bool takes_value(const CLI::Option& option) {
  return option.get_expected_max() > 0;
}

bool takes_list(const CLI::Option& option) {
  return option.get_delimiter() == ',' || option.get_type_name().ends_with(several);
}

// Separated by spaces; empty if any text may stand there.
std::string words_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.find('|') == std::string::npos) return {};
  std::string words = type.substr(0, type.find(several));
  std::replace(words.begin(), words.end(), '|', ' ');
  return words;
}

bool takes_file(const CLI::Option& option) {
  return option.get_type_name() == file_type || (option.get_positional() && words_of(option).empty());
}

// With a backslash before each of `characters`.
std::string escaped(std::string_view text, std::string_view characters) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string bash_script(const std::vector<Level>& levels) {
  const auto offer = [](const CLI::Option& one) { return takes_file(one) ? file_type : words_of(one); };
  std::string of_levels;
  std::string of_options;
  for (const Level& level : levels) {
    std::vector<std::string> options;
    for (const CLI::Option* one : shown_options(*level.app)) {
      options.push_back(one->get_name());
      if (!takes_value(*one)) continue;
      of_options += fmt::format("    '{} {}') words='{}'{} ;;\n", level.words, one->get_name(), offer(*one),
                                takes_list(*one) ? " commas=1" : "");
    }
    std::vector<std::string> words;
    for (const CLI::App* one : level.app->get_subcommands({})) words.push_back(one->get_name());
    if (const CLI::Option* const argument = argument_of(*level.app)) words.push_back(offer(*argument));
    of_levels += fmt::format("    '{}') options='{}' words='{}' ;;\n", level.words, fmt::join(options, " "),
                             fmt::join(words, " "));
  }
  return R"sh(# Completion of bash, printed by `shardwire completion bash`.
_shardwire() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
  local level=shardwire options= words= list= commas= i
  # An option and its value are words of their own, and so is the = between them.
  [[ $word != '=' ]] || word=
  [[ $before != '=' ]] || before=${COMP_WORDS[COMP_CWORD - 2]}
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$level ${COMP_WORDS[i]}" in
      )sh" +
         quoted_levels(levels, " | ") + R"sh() level+=" ${COMP_WORDS[i]}" ;;
    esac
  done
  case "$level" in
)sh" + of_levels +
         R"sh(  esac
  case "$level $before" in
)sh" + of_options +
         R"sh(  esac
  [[ $word != -* ]] || words=$options
  if [[ $words == FILE ]]; then
    compopt -o filenames -o default 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  else
    [[ -z $commas || $word != *,* ]] || list=${word%,*},
    mapfile -t COMPREPLY < <(compgen -P "$list" -W "$words" -- "${word#"$list"}")
  fi
}
complete -F _shardwire shardwire
)sh";
}

// The action of _arguments for a value: ":memory:(host cuda)".
std::string zsh_action(const CLI::Option& option, const std::string& name) {
  const std::string words = words_of(option);
  if (takes_file(option)) return fmt::format(":{}:_files", name);
  if (words.empty()) return fmt::format(":{}: ", name);
  if (takes_list(option)) return fmt::format(":{}:_sequence compadd - {}", name, words);
  return fmt::format(":{}:({})", name, words);
}

std::string zsh_option(const CLI::Option& option) {
  const std::string what = escaped(option.get_description(), "\\]");
  if (!takes_value(option)) return fmt::format("{}[{}]", option.get_name(), what);
  return fmt::format("{}{}=[{}]{}{}", option.get_expected_max() > 1 ? "*" : "", option.get_name(), what,
                     option.get_expected_min() == 0 ? ":" : "", zsh_action(option, option.get_lnames().front()));
}

std::string zsh_script(const std::vector<Level>& levels) {
  const auto quoted = [](std::string_view text) { return fmt::format("$'{}'", escaped(text, "\\'")); };
  std::string of_levels;
  for (const Level& level : levels) {
    std::vector<std::string> commands;
    for (const CLI::App* one : level.app->get_subcommands({})) {
      commands.push_back(quoted(fmt::format("{}:{}", one->get_name(), escaped(one->get_description(), "\\"))));
    }
    std::vector<std::string> specs;
    for (const CLI::Option* one : shown_options(*level.app)) specs.push_back(quoted(zsh_option(*one)));
    if (!commands.empty()) specs.push_back(quoted("1:command:{_describe command shardwire_commands}"));
    if (const CLI::Option* const argument = argument_of(*level.app)) {
      const char* const which = argument->get_expected_max() > 1 ? "*" : "1";
      specs.push_back(quoted(which + zsh_action(*argument, argument->get_name())));
    }
    of_levels += fmt::format("    '{}')\n      shardwire_commands=({})\n      _arguments {}\n      ;;\n", level.words,
                             fmt::join(commands, " "), fmt::join(specs, " \\\n        "));
  }
  return R"sh(#compdef shardwire
# Completion of zsh, printed by `shardwire completion zsh`.
_shardwire() {
  local level=shardwire
  local -a shardwire_commands
  while ((CURRENT > 2)); do
    case "$level $words[2]" in
      )sh" +
         quoted_levels(levels, " | ") + R"sh() level+=" $words[2]" ;;
      *) break ;;
    esac
    shift words
    ((CURRENT--))
  done
  case "$level" in
)sh" + of_levels +
         R"sh(  esac
}
# A folder of fpath runs this file as the function; `source` only defines it.
if [[ "$funcstack[1]" == _shardwire ]]; then
  _shardwire "$@"
else
  compdef _shardwire shardwire
fi
)sh";
}

std::string fish_script(const std::vector<Level>& levels) {
  const auto quoted = [](std::string_view text) { return fmt::format("'{}'", escaped(text, "\\'")); };
  const auto offer = [&](const CLI::Option& one) {
    const std::string words = words_of(one);
    if (takes_file(one)) return std::string(" -F");
    if (words.empty()) return std::string();
    return " -a " + quoted(takes_list(one) ? fmt::format("(__fish_append , {})", words) : words);
  };
  std::string lines;
  for (const Level& level : levels) {
    const std::string begin = fmt::format("complete -c shardwire -n '__shardwire_at {}'", level.words);
    for (const CLI::App* one : level.app->get_subcommands({})) {
      lines += fmt::format("{} -a {} -d {}\n", begin, one->get_name(), quoted(one->get_description()));
    }
    if (const CLI::Option* const argument = argument_of(*level.app)) lines += begin + offer(*argument) + "\n";
    for (const CLI::Option* one : shown_options(*level.app)) {
      const std::string value = !takes_value(*one) ? "" : takes_file(*one) ? " -r -F" : " -x" + offer(*one);
      lines +=
          fmt::format("{} -l {}{} -d {}\n", begin, one->get_lnames().front(), value, quoted(one->get_description()));
    }
  }
  return R"sh(# Completion of fish, printed by `shardwire completion fish`.
function __shardwire_at
    set -l level shardwire
    for word in (commandline -opc)
        switch "$level $word"
            case )sh" +
         quoted_levels(levels, " ") + R"sh(
                set level "$level $word"
        end
    end
    test "$level" = "$argv"
end
complete -c shardwire -f
)sh" + lines;
}

struct Shell {
  std::string_view name;
  std::string (*script)(const std::vector<Level>& levels);
};
constexpr Shell known_shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
constexpr std::string_view shell_names = "bash, zsh, fish";

}  // namespace

std::string one_of(std::string_view words) {
  std::string type(words);
  for (std::size_t at = 0; (at = type.find(", ", at)) != std::string::npos;) type.replace(at, 2, "|");
  return type;
}

std::string some_of(std::string_view words) {
  return fmt::format("{}{}", one_of(words), several);
}

std::function<int()> declare_completion(CLI::App& app) {
  const auto name = std::make_shared<std::string>();  // owners: the option and the run
  app.add_option("SHELL", *name, "whose completion is printed")->required()->type_name(one_of(shell_names));
  return [name, root = app.get_parent()] {
    for (const Shell& shell : known_shells) {
      if (shell.name != *name) continue;
      write_output(shell.script(levels_of(*root)));
      return exit_done;
    }
    throw UsageError(fmt::format("completion: '{}' is unknown{}", *name, support::known_words(*name, shell_names)));
  };
}

}  // namespace shardwire::cli
