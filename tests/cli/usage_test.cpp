// SPDX-License-Identifier: Apache-2.0
// Exit codes and messages of invalid command lines, before anything runs.
#include <fcntl.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <set>
#include <sstream>
#include <utility>

#include "cli/color.hpp"
#include "support/command.hpp"
#include "support/file.hpp"
#include "transport/config.hpp"
#include "transport/rdma.hpp"
#include "transport/transport.hpp"

BOOST_AUTO_TEST_SUITE(usage)

namespace {

using namespace shardwire::test;
using Words = std::vector<std::string>;

struct Usage {
  const char* title;
  Words words;
  int exit_code;
  const char* says;  ///< expected on either stream
};
std::ostream& operator<<(std::ostream& out, const Usage& usage) {
  return out << usage.title;
}

const Usage usages[] = {
    {"nothing", {}, 2, "Subcommands:"},
    {"help", {"--help"}, 0, "plan"},
    {"help_has_the_exit_statuses", {"--help"}, 0, "\nExit status:\n  0    done; `run`"},
    {"help_of_a_command_has_them_too", {"run", "--help"}, 0, "\n  130  interrupted\n\nExamples:\n  shardwire run "},
    {"help_of_a_question_has_its_own_examples",
     {"case", "check", "--help"},
     0,
     "\n\nExamples:\n  shardwire case check case.json  what the file means"},
    {"version", {"--version"}, 0, "shardwire 0."},
    {"unknown_command", {"bogus"}, 2, "bogus"},
    {"misspelt_command",
     {"pln", "x.json"},
     2,
     "shardwire: there is no command 'pln' (did you mean 'plan'?); known are plan, run,"},
    {"plan_help", {"plan", "--help"}, 0, "--totals"},
    {"plan_version", {"plan", "--version"}, 0, "shardwire 0."},
    {"plan_without_case", {"plan"}, 2, "CASE is required"},
    {"unknown_option", {"plan", "--bogus", "-"}, 2, "--bogus"},
    {"misspelt_option",
     {"plan", "--jsno", "-"},
     2,
     "plan: the option --jsno is unknown (did you mean '--json'?)\nRun 'shardwire plan --help'"},
    {"misspelt_option_with_a_value", {"run", "-", "--repaet=3"}, 2, "--repaet is unknown (did you mean '--repeat'?)"},
    {"misspelt_option_before_its_value",
     {"run", "-", "--repaet", "3"},
     2,
     "--repaet is unknown (did you mean '--repeat'?)"},
    {"former_names_are_not_suggested", {"run", "-", "--dedline", "3"}, 2, "the option --dedline is unknown\n"},
    {"two_cases", {"plan", "x.json", "y.json"}, 2, "plan: 'y.json' is one word too many"},
    {"misspelt_transport", {"run", "-", "--transport", "tpc"}, 2, "\"tpc\" (did you mean 'tcp'?)"},
    {"misspelt_memory",
     {"run", "-", "--memory", "hots"},
     2,
     "'hots' is unknown (did you mean 'host'?); known are host, cuda"},
    {"misspelt_color",
     {"plan", "-", "--color", "nevr"},
     2,
     "--color: 'nevr' is unknown (did you mean 'never'?); known are auto, always, never"},
    {"misspelt_fault", {"run", "-", "--fault", "kil:0@50"}, 2, "restep (did you mean 'kill'?)"},
    {"rank_no_number", {"plan", "--rank", "x", "-"}, 2, "--rank"},
    {"rank_too_large", {"plan", "--rank", "2", "-"}, 2, "--rank 2: the target has ranks 0 to 1"},
    {"rank_negative", {"plan", "--rank", "-1", "-"}, 2, "--rank -1"},
    {"fabric_of_one_rank", {"plan", "--rank", "0", "--fabric", "x.json", "-"}, 2, "leave out --rank"},
    {"fabric_twice_standard_input", {"plan", "--fabric", "-", "-"}, 2, "standard input is the case already"},
    {"fabric_missing", {"plan", "--fabric", "/nonexistent/x.json", "-"}, 2, "/nonexistent/x.json: No such file"},
    {"missing_file", {"plan", "/nonexistent/case.json"}, 2, "/nonexistent/case.json: No such file"},
    {"case_schema", {"case", "--schema"}, 0, "https://json-schema.org/draft/2020-12/schema"},
    {"case_without_question", {"case"}, 2, "case: check, from-hf, from-safetensors-index or --schema is expected"},
    {"case_with_two_questions", {"case", "--schema", "check", "-"}, 2, "--schema stands alone"},
    {"misspelt_question",
     {"case", "cheek", "-"},
     2,
     "case: there is no command 'cheek' (did you mean 'check'?); known are check, from-hf,"},
    {"version_of_a_question", {"case", "check", "--version"}, 0, "shardwire 0."},
    {"help_of_a_question", {"case", "from-hf", "--help"}, 0, "shardwire case from-hf [OPTIONS] FILE"},
    {"made_case_without_a_source",
     {"case", "from-hf", "config.json", "--target", "fsdp=2"},
     2,
     "case from-hf: --source is required"},
    {"made_case_with_a_misspelt_option",
     {"case", "from-hf", "config.json", "--sorce", "fsdp=2", "--target", "fsdp=2"},
     2,
     "case from-hf: the option --sorce is unknown (did you mean '--source'?)\nRun 'shardwire case from-hf --help'"},
    {"made_case_of_an_unknown_optimizer",
     {"case", "from-hf", "-", "--source", "fsdp=2", "--target", "fsdp=2", "--optimizer", "adamx"},
     2,
     "--optimizer: 'adamx' is unknown (did you mean 'adamw'?); known are adamw, adam8bit, muon, adafactor"},
    {"made_case_of_no_config",
     {"case", "from-hf", "-", "--source", "fsdp=2", "--target", "fsdp=2"},
     2,
     "standard input: the field 'model_type' is missing"},
    {"made_case_of_a_missing_index",
     {"case", "from-safetensors-index", "/nonexistent/x.json", "--source", "fsdp=2", "--target", "fsdp=2"},
     2,
     "/nonexistent/x.json: No such file"},
    {"key_without_file", {"key"}, 2, "FILE is required"},
    {"key_over_another_file", {"key", "/dev/null"}, 2, "/dev/null: File exists"},
    {"completion_of_no_shell", {"completion"}, 2, "completion: SHELL is required"},
    {"completion_of_an_unknown_shell",
     {"completion", "bsh"},
     2,
     "completion: 'bsh' is unknown (did you mean 'bash'?); known are bash, zsh, fish"},
    {"words_of_an_option_are_in_the_help", {"run", "--help"}, 0, "  --memory host|cuda "},
    {"doctor_expects_nothing_without_a_case", {"doctor", "--expect", "floor=1"}, 2, "--expect: takes a CASE"},
    {"doctor_has_no_replicas_without_a_case", {"doctor", "--replicas", "first"}, 2, "first: takes a CASE"},
    {"doctor_expects_a_misspelt_word",
     {"doctor", "-", "--expect", "fllor=1"},
     2,
     "--expect: 'fllor' is unknown (did you mean 'floor'?); known are floor, ceiling, transport"},
    {"doctor_expects_an_empty_text", {"doctor", "-", "--expect", ""}, 2, "--expect: '' is unknown; known are floor"},
    {"doctor_expects_no_number",
     {"doctor", "-", "--expect", "floor=20GB"},
     2,
     "floor='20GB': expected a number of GB/s"},
    {"doctor_expects_an_unknown_transport",
     {"doctor", "-", "--expect", "transport=tpc"},
     2,
     "--expect: transport 'tpc' is unknown (did you mean 'tcp'?)"},
    {"folder", {"plan", "/"}, 2, "shardwire: /: "},
};

const char* const two_ranks = R"j({"tensors": [{"fqn": "w", "shape": [8]}],
  "source": {"ranks": 2, "rules": {"*": {"replicated": true}}}, "target": {"ranks": 2, "rules": {"*": {"replicated": true}}}})j";

// The long names of the options that the --help of a command lists.
Words options_of(Words command) {
  command.emplace_back("--help");
  std::istringstream help(run_command(command).out);
  Words names;
  for (std::string line; std::getline(help, line);) {
    const std::size_t begin = line.find("--");
    if (line.starts_with("  -")) names.push_back(line.substr(begin, line.find(' ', begin) - begin));
  }
  return names;
}

// Runs a shell with its completion on standard input.
CommandResult run_shell(Words shell, const Words& words) {
  const std::string script = run_command({"completion", shell.front()}).out;
  shell.insert(shell.begin(), "/usr/bin/env");
  shell.insert(shell.end(), words.begin(), words.end());
  return RunningCommand(std::move(shell), script).wait();
}

// The words that bash offers for the last of these.
std::set<std::string> offered(const Words& words) {
  const char* const body = R"sh(
    eval "$(cat)"
    COMP_WORDS=("$0" "$@") COMP_CWORD=$#
    _shardwire
    for one in "${COMPREPLY[@]}"; do echo "$one"; done)sh";
  const CommandResult result = run_shell({"bash", "-c", body}, words);
  BOOST_TEST(result.exit_code == 0, result.err);
  std::set<std::string> all;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) all.insert(line);
  return all;
}

struct Installed {
  const char* shell;
  boost::test_tools::assertion_result operator()(boost::unit_test::test_unit_id /*case*/) const {
    const CommandResult version = RunningCommand({"/usr/bin/env", shell, "--version"}).wait();
    boost::test_tools::assertion_result result(version.exit_code == 0);
    if (!result) result.message() << "there is no " << shell;
    return result;
  }
};

}  // namespace

BOOST_DATA_TEST_CASE(has_the_documented_exit_code, boost::unit_test::data::make(usages), sample) {
  const CommandResult result = run_command(sample.words, two_ranks);
  BOOST_TEST(result.exit_code == sample.exit_code);
  BOOST_TEST((result.out + result.err).find(sample.says) != std::string::npos, result.out + result.err);
  if (sample.exit_code == 0) BOOST_TEST(result.err == "");
  if (sample.exit_code == 2) BOOST_TEST(result.out == "");
}

BOOST_AUTO_TEST_CASE(a_key_that_was_made_is_one_that_jobs_take) {
  const File place("job.key");
  const CommandResult made = run_command({"key", place.path()}, "");
  BOOST_TEST(made.exit_code == 0, made.err);
  BOOST_TEST(made.out.find("export SHARDWIRE_JOB_KEY_FILE=" + place.path()) != std::string::npos);
  const CommandResult ran =
      run_command({"run", "--transport", "loopback", "-"}, two_ranks, {{"SHARDWIRE_JOB_KEY_FILE", place.path()}});
  BOOST_TEST(ran.exit_code == 0, ran.err);
}

BOOST_AUTO_TEST_CASE(questions_to_a_keeper_refuse_the_options_that_they_ignore) {
  const std::set<std::string> used{"--help",   "--version", "--color", "--job",
                                   "--socket", "--status",  "--json",  "--drop"};
  int refused = 0;
  for (const std::string& option : options_of({"keep"})) {
    if (used.count(option) > 0) continue;
    ++refused;
    for (const Words& question : {Words{"--status"}, Words{"--drop", "state"}}) {
      Words words{"keep", "--job", "test", option, "1"};
      words.insert(words.end(), question.begin(), question.end());
      const CommandResult result = run_command(words);
      BOOST_TEST(result.exit_code == 2);
      BOOST_TEST(result.err.find(option + " goes with neither --status nor --drop") != std::string::npos, result.err);
    }
  }
  BOOST_TEST(refused >= 3);
}

BOOST_AUTO_TEST_CASE(bash_offers_the_commands_and_options_of_help) {
  using Set = std::set<std::string>;
  BOOST_TEST((offered({"shardwire", "d"}) == Set{"drill", "doctor"}));
  BOOST_TEST((offered({"shardwire", "case", ""}) == Set{"check", "from-hf", "from-safetensors-index"}));
  BOOST_TEST((offered({"shardwire", "run", "--dead"}) == Set{}));             // a former name
  BOOST_TEST((offered({"shardwire", "run", "--memory", "host,"}) == Set{}));  // takes one word
  for (const Words& command : {Words{}, Words{"run"}, Words{"perf"}, Words{"keep"}, Words{"case", "from-hf"}}) {
    Words words{"shardwire"};
    words.insert(words.end(), command.begin(), command.end());
    words.emplace_back("-");
    const Words options = options_of(command);
    BOOST_TEST((offered(words) == Set(options.begin(), options.end())), words[words.size() - 2]);
  }
}

BOOST_AUTO_TEST_CASE(bash_offers_the_words_of_options_and_else_files) {
  using Set = std::set<std::string>;
  BOOST_TEST((offered({"shardwire", "completion", ""}) == Set{"bash", "zsh", "fish"}));
  BOOST_TEST((offered({"shardwire", "run", "--memory", ""}) == Set{"host", "cuda"}));
  BOOST_TEST((offered({"shardwire", "run", "--memory", "=", "c"}) == Set{"cuda"}));
  BOOST_TEST((offered({"shardwire", "run", "--memory", "="}) == Set{"host", "cuda"}));
  BOOST_TEST((offered({"shardwire", "drill", "--kinds", "kill,c"}) == Set{"kill,cut", "kill,corrupt"}));
  BOOST_TEST((offered({"shardwire", "case", "from-hf", "--optimizer", "adamw", "--opt"}) == Set{"--optimizer"}));
  Set transports{"auto"};
  for (const auto& one : shardwire::transport::registered()) transports.emplace(one.name);
  BOOST_TEST((offered({"shardwire", "doctor", "--transport", ""}) == transports));
  transports.insert("nccl");
  BOOST_TEST((offered({"shardwire", "run", "--transport", ""}) == transports));

  const File file("completed.json", "{}");
  const std::string begin = file.path().substr(0, file.path().size() - 8);
  BOOST_TEST((offered({"shardwire", "run", begin}) == Set{file.path()}));
  BOOST_TEST((offered({"shardwire", "run", "-", "--report", begin}) == Set{file.path()}));
  BOOST_TEST((offered({"shardwire", "run", "-", "--rate", begin}) == Set{}));
}

BOOST_AUTO_TEST_CASE(scripts_of_zsh_and_fish_have_the_same_words) {
  const std::string zsh = run_command({"completion", "zsh"}).out;
  for (const char* const text :
       {"#compdef shardwire\n", "$'1:command:{_describe command shardwire_commands}'", "$'1:CASE:_files'",
        "$'*:FILES:_files'", "$'--memory=[memory of the state (default: host)]:memory:(host cuda)'",
        ":kinds:_sequence compadd - kill stop ",
        "$'--rate=[most remote bytes into each rank per second, e.g. 500M]:rate: '",
        "$'--tensor=[FQN[:state\\\\] of the tensor ", "$'--socket=[local socket, a path if it begins with \\'/\\' "}) {
    BOOST_TEST(zsh.find(text) != std::string::npos, "no " << text << " in\n" << zsh);
  }
  const std::string fish = run_command({"completion", "fish"}).out;
  for (const char* const text :
       {"complete -c shardwire -n '__shardwire_at shardwire' -a plan -d 'Show the transfers ",
        "complete -c shardwire -n '__shardwire_at shardwire case check' -F\n",
        "'__shardwire_at shardwire run' -l memory -x -a 'host cuda' -d 'memory of the state (default: host)'\n",
        "'__shardwire_at shardwire drill' -l kinds -x -a '(__fish_append , kill stop ",
        "'__shardwire_at shardwire run' -l rate -x -d ", "'__shardwire_at shardwire run' -l report -r -F -d ",
        "'__shardwire_at shardwire run' -l disjoint -d ", "with \\'/\\' (SHARDWIRE_KEEPER_SOCKET"}) {
    BOOST_TEST(fish.find(text) != std::string::npos, "no " << text << " in\n" << fish);
  }
}

// The functions of zsh's completion work at a prompt only, so others stand in for them.
BOOST_AUTO_TEST_CASE(the_script_of_zsh_runs, *boost::unit_test::precondition(Installed{"zsh"})) {
  const char* const body = R"sh(
    compdef() { : }
    _arguments() { print -rl -- "$@" }
    eval "$(cat)"
    words=("$0" "$@") CURRENT=$(($# + 1))
    _shardwire)sh";
  const CommandResult result = run_shell({"zsh", "-f", "-c", body}, {"shardwire", "case", "from-hf", ""});
  BOOST_TEST(result.exit_code == 0, result.err);
  for (const char* const text :
       {"\n--optimizer=[whose states there are (default: adamw)]:optimizer:(adamw adam8bit muon adafactor)\n",
        "\n1:FILE:_files\n"}) {
    BOOST_TEST(result.out.find(text) != std::string::npos, "no " << text << " in\n" << result.out << result.err);
  }
}

BOOST_AUTO_TEST_CASE(the_script_of_fish_runs, *boost::unit_test::precondition(Installed{"fish"})) {
  const CommandResult result =
      run_shell({"fish", "--no-config", "-c", "source -; complete -C 'shardwire run --memory '"}, {});
  BOOST_TEST(result.exit_code == 0, result.err);
  for (const char* const text : {"host", "cuda"}) {
    BOOST_TEST(result.out.find(text) != std::string::npos, result.out << result.err);
  }
}

BOOST_AUTO_TEST_CASE(case_check_says_what_it_understood) {
  const char* const text = R"j({"name": "two layers", "states": ["m"], "dtypes": {"m": "bf16"},
    "tensors": [{"fqn": "a", "shape": [8, 4], "rule": "rows"}, {"fqn": "b", "shape": [6], "rule": "whole"}, {"fqn": "s", "shape": []},
      {"fqn": "f", "shape": [5], "rule": "flat1", "states": [{"name": "m"}, {"name": "v", "dtype": "u8"}]}],
    "source": {"ranks": 8, "lost": [7], "rules": {"rows": {"chunk": 0, "over": 7}, "whole": {"replicated": true}, "*": {"chunk": 0, "over": 8},
      "unused": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"flat1": {"flat": [["*"]], "world": 2}, "*": {"mesh": [2], "placements": ["R"]}}}})j";
  const CommandResult result = run_command({"case", "check", "-"}, text);
  BOOST_TEST(result.exit_code == 0, result.err);
  BOOST_TEST(result.out == R"(standard input is a valid case, "two layers".
It has 4 tensors, with the states: m (bf16), v (u8, of 1 tensor). Together they have 93 B.
1 one-element tensor goes by value, to every target rank.
The source has 8 ranks, of which 1 is lost. Elements are on 1 to 7 ranks on average. A rank holds 12 B to 31 B.
  rule *, 2 tensors: chunk(dim 0, over 8)
  rule rows, 1 tensor: chunk(dim 0, over 7)
  rule whole, 1 tensor: replicated
  Every rank has the whole of 1 tensor, such as b.
The target has 2 ranks. Elements are on 1 to 2 ranks on average. A rank wants 85 B.
  rule *, 3 tensors: mesh (2) [R]
  rule flat1, 1 tensor: 1 flat parameter over 2 ranks
  Every rank has the whole of 2 tensors, such as a.
  Padding of flat parameters takes 3 B in all.
warning: source.rules.rows: chunk(dim 0, over 7) is for 7 of 8 ranks: rank 7 has no part of its tensors. Change the number, or list the "ranks"
warning: source.rules.unused: no tensor has this rule
)");
}

BOOST_AUTO_TEST_CASE(case_check_warns_of_regions_that_no_source_rank_holds) {
  const auto warnings = [](const std::string& shape, const std::string& lost) {
    const std::string text = R"j({"states": ["m"], "tensors": [{"fqn": "a", "shape": )j" + shape +
                             R"j(}], "source": {"ranks": 2, "lost": )j" + lost +
                             R"j(, "rules": {"*": {"chunk": 0, "over": 2}}},
                             "target": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}}})j";
    const CommandResult result = run_command({"case", "check", "-"}, text);
    BOOST_TEST(result.exit_code == 0, result.err);
    const std::size_t begin = result.out.find("warning:");
    return begin == std::string::npos ? std::string() : result.out.substr(begin);
  };
  const std::string says = " regions that no source rank holds: shardwire plan names them\n";
  BOOST_TEST(warnings("[8]", "[]") == "");
  BOOST_TEST(warnings("[8]", "[1]") == "warning: target ranks 2, 3 want" + says);
  BOOST_TEST(warnings("[3]", "[1]") == "warning: target rank 2 wants" + says);
  BOOST_TEST(warnings("[]", "[1]") == "");
  BOOST_TEST(warnings("[]", "[0, 1]") == "warning: target ranks 0..3 want" + says);
}

BOOST_AUTO_TEST_CASE(case_check_refuses_as_the_reader_does) {
  const CommandResult result = run_command({"case", "check", "-"}, "{\"tensor\": []}");
  BOOST_TEST(result.exit_code == 2);
  BOOST_TEST(result.out == "");
  BOOST_TEST(result.err.find("shardwire: standard input: tensor: unknown field (did you mean 'tensors'?)") == 0,
             result.err);
}

const char* const small_llama =
    R"j({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16,
  "num_attention_heads": 2, "vocab_size": 32})j";

BOOST_AUTO_TEST_CASE(a_case_made_of_a_config_runs) {
  const File made("made.json");
  const CommandResult written = run_command({"case", "from-hf", "-", "--source", "fsdp=2,tp=2", "--target", "hsdp=2x2",
                                             "--optimizer", "adafactor", "--output", made.path()},
                                            small_llama);
  BOOST_TEST(written.exit_code == 0, written.err);
  BOOST_TEST(written.out == made.path() + " has 12 tensors, 4 source ranks and 4 target ranks\n");
  BOOST_TEST(made.json().at("name") == "llama: fsdp=2,tp=2 to hsdp=2x2, adafactor");
  const CommandResult ran = run_command({"run", "--transport", "loopback", made.path()});
  BOOST_TEST(ran.exit_code == 0, ran.err);
  const CommandResult printed =
      run_command({"case", "from-hf", "-", "--source", "fsdp=2", "--target", "fsdp=1"}, small_llama);
  BOOST_TEST(printed.exit_code == 0, printed.err);
  BOOST_TEST(run_command({"plan", "-"}, printed.out).exit_code == 0);
}

BOOST_AUTO_TEST_CASE(an_unknown_architecture_is_named_with_those_that_are_known) {
  const CommandResult result =
      run_command({"case", "from-hf", "-", "--source", "fsdp=2", "--target", "fsdp=1"}, R"({"model_type": "lama"})");
  BOOST_TEST(result.exit_code == 2);
  BOOST_TEST(
      result.err ==
      "shardwire: standard input: model_type: unknown architecture \"lama\" (did you mean 'llama'?); known are llama, "
      "mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, gemma, gemma2, gemma3_text, "
      "gemma3, gpt2, gpt_bigcode, gpt_neox, bloom, falcon, opt, phi\n");
}

// A file of safetensors without its data: eight bytes of length, little-endian, and the header.
std::string header_file(const std::string& header) {
  std::string text(8, '\0');
  for (int i = 0; i < 4; ++i) text[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  return text + header;
}

BOOST_AUTO_TEST_CASE(a_case_made_of_an_index_has_the_shapes_of_the_files) {
  const File first("one.safetensors", header_file(R"({"__metadata__": {"format": "pt"},
    "layers.10.q_proj.weight": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]},
    "layers.9.down_proj.weight": {"dtype": "F32", "shape": [4, 8], "data_offsets": [64, 192]}})"));
  const File second("two.safetensors",
                    header_file(R"({"odd.weight": {"dtype": "F16", "shape": [6, 2], "data_offsets": [0, 24]},
    "positions": {"dtype": "I64", "shape": [3], "data_offsets": [24, 48]}})"));
  const auto index_of = [](const std::string& one, const std::string& two) {
    return R"({"metadata": {}, "weight_map": {"layers.10.q_proj.weight": ")" + one +
           R"(", "layers.9.down_proj.weight": ")" + one + R"(", "odd.weight": ")" + two + R"(", "positions": ")" + two +
           R"("}})";
  };
  const std::vector<std::string> options{"--source", "fsdp=2", "--target", "tp=2"};
  const auto make = [&](const File& index) {
    std::vector<std::string> words{"case", "from-safetensors-index", index.path()};
    words.insert(words.end(), options.begin(), options.end());
    return run_command(words);
  };
  const CommandResult made = make(File("index.json", index_of(first.path(), second.path())));
  BOOST_REQUIRE_EQUAL(made.exit_code, 0);
  BOOST_TEST(
      made.err ==
      "shardwire: 1 tensor of integers left out: no optimizer has states of them\n"
      "shardwire: each rank of tp has the whole of 1 matrix, whose names tell nothing else, such as odd.weight\n");
  const nlohmann::json tensors = nlohmann::json::parse(made.out).at("tensors");
  BOOST_TEST(tensors == nlohmann::json::parse(R"([{"fqn": "layers.9.down_proj.weight", "shape": [4, 8], "rule": "col"},
    {"fqn": "layers.10.q_proj.weight", "shape": [8, 4], "rule": "row"}, {"fqn": "odd.weight", "shape": [6, 2], "rule": "rep"}])"));
  const CommandResult missing = make(File("index.json", index_of(first.path(), "three.safetensors")));
  BOOST_TEST(missing.exit_code == 2);
  BOOST_TEST(missing.err.find("three.safetensors: No such file or directory") != std::string::npos, missing.err);
  const CommandResult swapped = make(File("index.json", index_of(second.path(), first.path())));
  BOOST_TEST(swapped.err.find("layers.10.q_proj.weight\"]: " + second.path() + " has no tensor of this name") !=
                 std::string::npos,
             swapped.err);
  const File cut("cut.safetensors", header_file("{}").substr(0, 9));
  const CommandResult ended = make(File("index.json", index_of(cut.path(), second.path())));
  BOOST_TEST(ended.err.find(cut.path() + ": the file ends within its header of 2 bytes") != std::string::npos,
             ended.err);
}

BOOST_AUTO_TEST_CASE(a_bad_case_on_standard_input_is_refused_in_one_line) {
  const CommandResult result = run_command({"plan", "-"}, "{\n");
  BOOST_TEST(result.exit_code == 2);
  BOOST_TEST(result.err.find("shardwire: standard input: 2:1: ") == 0);
  BOOST_TEST(std::count(result.err.begin(), result.err.end(), '\n') == 1);
}

BOOST_AUTO_TEST_CASE(a_job_that_memory_does_not_suffice_for_says_what_it_needs) {
  const char* const too_large = R"j({"states": ["master"], "tensors": [{"fqn": "w", "shape": [1099511627776]}],
    "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
    "target": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}})j";
  for (const char* command : {"run", "perf"}) {
    const CommandResult result = run_command({command, "-"}, too_large);
    BOOST_TEST(result.exit_code == 1);
    BOOST_TEST(result.err.find("the job needs 8.80 TB of memory on this host") != std::string::npos, result.err);
  }
}

BOOST_AUTO_TEST_CASE(timeout_and_its_former_name_do_the_same) {
  for (const char* const command : {"run", "drill", "perf"}) {
    for (const char* const name : {"--timeout", "--deadline"}) {
      const CommandResult result = run_command({command, "-", name, "0"}, two_ranks);
      BOOST_TEST(result.exit_code == 2);
      BOOST_TEST(result.err.find("--timeout: a number of seconds ") != std::string::npos, result.err);
    }
    const CommandResult twice = run_command({command, "-", "--timeout", "60", "--deadline", "60"}, two_ranks);
    BOOST_TEST(twice.exit_code == 2);
    BOOST_TEST(twice.err.find("--timeout excludes --deadline") != std::string::npos, twice.err);
    const CommandResult help = run_command({command, "--help"}, "");
    BOOST_TEST(help.out.find("--timeout") != std::string::npos, help.out);
    BOOST_TEST(help.out.find("--deadline") == std::string::npos, help.out);
  }
  const CommandResult ran = run_command({"run", "--transport", "loopback", "--deadline", "60", "-"}, two_ranks);
  BOOST_TEST(ran.exit_code == 0, ran.err);
}

BOOST_AUTO_TEST_CASE(verify_takes_generation_also_by_its_former_name) {
  for (const char* const word : {"generation", "none", "digest"}) {
    const CommandResult result = run_command({"run", "--transport", "loopback", "--verify", word, "-"}, two_ranks);
    BOOST_TEST(result.exit_code == 0, result.err);
  }
  const CommandResult refused = run_command({"run", "--transport", "loopback", "--verify", "maybe", "-"}, two_ranks);
  BOOST_TEST(refused.exit_code == 2);
  BOOST_TEST(refused.err.find("'maybe' is unknown; known are generation, digest") != std::string::npos, refused.err);
}

BOOST_AUTO_TEST_CASE(colors_are_those_that_the_option_asks_for) {
  const Words words{"plan", "/nonexistent/case.json"};
  BOOST_TEST(run_command(words).err.starts_with("shardwire: "));
  const Words always{"plan", "/nonexistent/case.json", "--color", "always"};
  BOOST_TEST(run_command(always).err.starts_with("\033[31mshardwire:\033[0m "));
  BOOST_TEST(run_command(always, {}, {{"NO_COLOR", "1"}}).err.starts_with("\033[31mshardwire:\033[0m "));
}

BOOST_AUTO_TEST_CASE(a_terminal_has_colors_where_no_color_is_not_set) {
  using shardwire::cli::marked;
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  BOOST_REQUIRE(::grantpt(terminal) == 0);
  BOOST_REQUIRE(::unlockpt(terminal) == 0);
  std::FILE* const stream = std::fopen(::ptsname(terminal), "w");
  BOOST_REQUIRE(stream != nullptr);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  BOOST_TEST(marked("x", shardwire::cli::Mark::warning, stream) == "\033[33mx\033[0m");
  ::setenv("TERM", "dumb", 1);
  BOOST_TEST(marked("x", shardwire::cli::Mark::warning, stream) == "x");
  ::setenv("TERM", "xterm", 1);
  ::setenv("NO_COLOR", "1", 1);
  BOOST_TEST(marked("x", shardwire::cli::Mark::warning, stream) == "x");
  std::fclose(stream);
  ::close(terminal);
}

BOOST_AUTO_TEST_CASE(an_unknown_variable_is_reported) {
  const CommandResult result = run_command({"plan", "-"}, two_ranks, {{"SHARDWIRE_TRANSPROT", "ucx"}});
  BOOST_TEST(result.exit_code == 0);
  BOOST_TEST(result.err.find("SHARDWIRE_TRANSPROT is unknown (did you mean 'SHARDWIRE_TRANSPORT'?); known are ") !=
                 std::string::npos,
             result.err);
}

BOOST_AUTO_TEST_CASE(the_log_of_a_run_has_the_format_that_the_environment_names) {
  const Words run{"run", "--transport", "loopback", "-"};
  const auto logged = [&](const char* format) {
    return run_command(run, two_ranks,
                       {{"SHARDWIRE_LOG", "info"}, {"SHARDWIRE_LOG_FORMAT", format}, {"SHARDWIRE_RUN_ID", "night"}});
  };
  const CommandResult text = logged("text");
  BOOST_TEST(text.exit_code == 0);
  BOOST_TEST(text.err.find("Z INFO  shardwire run=night member=1 restore of 'state' as ") != std::string::npos,
             text.err);
  const CommandResult json = logged("json");
  BOOST_TEST(json.exit_code == 0);
  BOOST_TEST(
      json.err.find("Z\",\"level\":\"INFO\",\"run\":\"night\",\"member\":1,\"message\":\"restore of 'state' as ") !=
          std::string::npos,
      json.err);
  const CommandResult wrong = logged("xml");
  BOOST_TEST(wrong.exit_code == 2);
  BOOST_TEST(wrong.err.find("SHARDWIRE_LOG_FORMAT='xml' is not a format: use text, json") != std::string::npos,
             wrong.err);
}

#if SHARDWIRE_HAVE_UCX
boost::test_tools::assertion_result no_rdma_hardware(boost::unit_test::test_unit_id /*case*/) {
  const shardwire::transport::Viability hardware = shardwire::transport::probe_rdma();
  boost::test_tools::assertion_result result(!hardware.viable);
  if (hardware.viable) result.message() << "there is RDMA hardware: " << hardware.detail;
  return result;
}

BOOST_AUTO_TEST_CASE(ucx_needs_hardware_or_a_word_on_what_to_use_instead,
                     *boost::unit_test::precondition(no_rdma_hardware)) {
  const Words run{"run", "-", "--transport", "ucx"};
  const CommandResult refused = run_command(run, two_ranks, {{"UCX_TLS", ""}});
  BOOST_TEST(refused.exit_code == 2);
  BOOST_TEST(refused.err.find("no RDMA device") != std::string::npos, refused.err);
  BOOST_TEST(refused.err.find("set UCX_TLS") != std::string::npos, refused.err);
  const CommandResult told = run_command(run, two_ranks, {{"UCX_TLS", "tcp"}, {"UCX_NET_DEVICES", "lo"}});
  BOOST_TEST(told.exit_code == 0, told.err);
}
#endif

BOOST_AUTO_TEST_SUITE_END()
