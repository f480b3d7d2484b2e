// SPDX-License-Identifier: Apache-2.0
// Environment variables of launchers and users, read by bootstrap_from_env() and by sessions.
#include <unistd.h>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "control/pmix_config.hpp"
#include "memory/kernel_choice.hpp"
#include "move/tuning.hpp"
#include "session/settings.hpp"
#include "support/job.hpp"
#include "support/launch_variables.hpp"
#include "support/processor.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(environment)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

using Variables = std::map<std::string, std::string>;

Variables torchrun(Variables more) {
  more.insert({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}});
  return more;
}
Variables mpirun(Variables more) {
  more.insert({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  return more;
}
Variables srun(Variables more) {
  more.insert({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "3"}});
  return more;
}

Bootstrap bootstrap_in(const Variables& variables) {
  const Environment environment(variables);
  return bootstrap_from_env();
}

/// The lines that a session logs.
struct Log {
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> lines;

  LogSink sink() {
    return [this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(level, text);
    };
  }
  int count(LogLevel level, const std::string& part) {
    const std::lock_guard lock(mutex);
    return static_cast<int>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line.first == level && line.second.find(part) != std::string::npos;
    }));
  }
  bool says(const std::string& part) { return count(LogLevel::info, part) > 0; }
};

SessionOptions logged(Log& log) {
  SessionOptions options = quick();
  options.log = log.sink();
  return options;
}

/// The text that `body` writes to standard error.
template <typename Body>
std::string standard_error_of(Body body) {
  std::FILE* file = std::tmpfile();
  const int before = ::dup(STDERR_FILENO);
  std::fflush(stderr);
  ::dup2(::fileno(file), STDERR_FILENO);
  body();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text.push_back(static_cast<char>(c));
  std::fclose(file);
  return text;
}

/// The text without the time at its front, which is RFC 3339 in UTC with microseconds, whatever the clock says.
std::string without_time(const std::string& text) {
  const std::string pattern = "9999-99-99T99:99:99.999999Z";
  std::string time = text.substr(0, pattern.size());
  std::ranges::replace_if(
      time, [](char c) { return c >= '0' && c <= '9'; }, '9');
  BOOST_TEST(time == pattern, text);
  return text.substr(time.size());
}

/// The line of the default log for a warning with this text.
std::string warning_line(LogFormat format, const LogOrigin& origin, std::string_view text) {
  return standard_error_of([&] { standard_error_log({LogLevel::info, format}, origin)(LogLevel::warning, text); });
}

boost::test_tools::assertion_result has_pmix(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(SHARDWIRE_HAVE_PMIX != 0);
  result.message() << "PMIx: " << SHARDWIRE_PMIX_DETAIL;
  return result;
}

}  // namespace

// Runs first: the warning appears once per process.
BOOST_AUTO_TEST_CASE(an_unknown_variable_is_warned_of_once) {
  const Environment environment(Variables{{"SHARDWIRE_TRANSPROT", "ucx"}});
  Log log;
  Session::join(member(0, 1, free_port()), logged(log));
  Session::join(member(0, 1, free_port()), logged(log));
  BOOST_TEST(log.count(LogLevel::warning, "SHARDWIRE_TRANSPROT") == 1);
}

BOOST_AUTO_TEST_CASE(a_job_that_any_process_may_join_is_warned_of_once) {
  const Environment environment(Variables{});
  Log log;
  Bootstrap here = member(0, 1, free_port());
  here.allow_open_network = true;
  Session::join(here, logged(log));
  Bootstrap everywhere = member(0, 1, free_port());
  everywhere.address = "0.0.0.0";
  Session::join(everywhere, logged(log));  // admits only processes of this host
  everywhere.allow_open_network = true;
  everywhere.job_key = Bytes(32);
  Session::join(everywhere, logged(log));
  BOOST_TEST(log.count(LogLevel::warning, "no key") == 0);
  everywhere.job_key.clear();
  Session::join(everywhere, logged(log));
  Session::join(everywhere, logged(log));
  BOOST_TEST(log.count(LogLevel::warning, "no key") == 1);
}

BOOST_AUTO_TEST_CASE(a_key_file_that_a_bootstrap_does_not_use_is_warned_of) {
  const Environment environment(Variables{{"SHARDWIRE_JOB_KEY_FILE", "/nonexistent/job.key"}});
  Log log;
  Bootstrap filled = member(0, 1, free_port());
  filled.job_key.clear();
  Session::join(filled, logged(log));
  BOOST_TEST(log.count(LogLevel::warning, "SHARDWIRE_JOB_KEY_FILE is set, but this Bootstrap has no key") == 1);
  filled.job_key = Bytes(32);
  Session::join(filled, logged(log));
  BOOST_TEST(log.count(LogLevel::warning, "SHARDWIRE_JOB_KEY_FILE") == 1);
}

BOOST_AUTO_TEST_CASE(the_run_id_comes_from_who_knows_best) {
  const Variables all{{"SHARDWIRE_RUN_ID", "mine"},
                      {"TORCHELASTIC_RUN_ID", "elastic"},
                      {"SLURM_JOB_ID", "77"},
                      {"SLURM_STEP_ID", "3"},
                      {"PMIX_NAMESPACE", "prte.1@2"}};
  Variables left = all;
  BOOST_TEST(bootstrap_in(torchrun(left)).run_id == "mine");
  left.erase("SHARDWIRE_RUN_ID");
  BOOST_TEST(bootstrap_in(torchrun(left)).run_id == "elastic");
  left["TORCHELASTIC_RUN_ID"] = "none";
  BOOST_TEST(bootstrap_in(torchrun(left)).run_id == "77");
  left.erase("SLURM_JOB_ID");
  BOOST_TEST(bootstrap_in(torchrun(left)).run_id == "prte.1@2");
  left.erase("PMIX_NAMESPACE");
  BOOST_TEST(bootstrap_in(torchrun(left)).run_id == "");
}

BOOST_AUTO_TEST_CASE(jobs_of_one_allocation_are_told_apart) {
  BOOST_TEST(bootstrap_in(srun({{"SLURM_NNODES", "1"}})).run_id == "77.3");
  BOOST_TEST(bootstrap_in(mpirun({{"SLURM_JOB_ID", "77"}, {"PMIX_NAMESPACE", "a"}})).run_id == "77.a");
}

BOOST_AUTO_TEST_CASE(a_port_that_nobody_names_is_derived_from_the_run_id) {
  const auto port = [](const std::string& run_id, Variables more = {}) {
    more["PMIX_NAMESPACE"] = run_id;
    return bootstrap_in(mpirun(more)).port;
  };
  BOOST_TEST(port("prterun-host-1@1") != port("prterun-host-2@1"));
  BOOST_TEST(port("job") == 28060);  // fixed, since members may have different builds
  for (int i = 0; i < 1000; ++i) {
    const auto one = port(std::to_string(i));
    BOOST_REQUIRE((one >= 20000 && one <= 32767));
  }
  BOOST_TEST(port("job", {{"MASTER_PORT", "1234"}}) == 1235);
  BOOST_TEST(port("job", {{"MASTER_PORT", "1234"}, {"SHARDWIRE_PORT", "99"}}) == 99);
  BOOST_TEST(bootstrap_in(mpirun({})).port == 29501);
}

BOOST_AUTO_TEST_CASE(srun_on_one_node_needs_no_address) {
  for (const char* name : {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"}) {
    const Bootstrap bootstrap = bootstrap_in(srun({{name, "1"}}));
    BOOST_TEST(bootstrap.address == "127.0.0.1");
    BOOST_TEST(bootstrap.rank == 1);
    BOOST_TEST(bootstrap.local_size == 4);
  }
  // One node of a two-node allocation.
  BOOST_TEST(bootstrap_in(srun({{"SLURM_NNODES", "2"}, {"SLURM_STEP_NUM_NODES", "1"}})).local_size == 4);
  const auto needs_address = [](const Variables& more) {
    refused(ErrorCode::invalid_argument, "MASTER_ADDR", [&] { bootstrap_in(srun(more)); });
  };
  needs_address({{"SLURM_NNODES", "2"}});
  needs_address({});
}

BOOST_AUTO_TEST_CASE(how_many_were_launched_is_what_the_launcher_says) {
  const auto size_in = [](const Variables& variables) {
    const Environment environment(variables);
    return world_size_from_env();
  };
  BOOST_TEST((size_in(torchrun({})) == 4));
  BOOST_TEST((size_in(mpirun({})) == 4));
  BOOST_TEST((size_in(srun({})) == 4));
  BOOST_TEST((size_in({}) == std::nullopt));
  BOOST_TEST((size_in({{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prte.1@2"}}) == std::nullopt));
  refused(ErrorCode::invalid_argument, "SLURM_NTASKS", [&] {
    size_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "x"}});
  });
}

// If the PMIx server does not answer, members must neither form jobs of one process each nor meet at a port of this
// host.
BOOST_AUTO_TEST_CASE(a_pmix_server_that_does_not_answer_is_an_error, *boost::unit_test::precondition(has_pmix)) {
  const Variables pmix{{"PMIX_NAMESPACE", "gone"}, {"PMIX_RANK", "1"}};
  for (const Variables& variables : {mpirun(pmix), srun(pmix), pmix}) {
    refused(ErrorCode::transport_failed, "PMIx server", [&] { bootstrap_in(variables); });
  }
}

BOOST_AUTO_TEST_CASE(pmix_is_not_asked_where_it_is_not_needed) {
  const Variables pmix{{"PMIX_NAMESPACE", "gone"}, {"PMIX_RANK", "1"}};
  BOOST_TEST(bootstrap_in(torchrun(pmix)).rank == 1);
  Variables more = pmix;
  more["MASTER_ADDR"] = "node7";
  BOOST_TEST(bootstrap_in(mpirun(more)).address == "node7");
  more = pmix;
  more["OMPI_COMM_WORLD_RANK"] = "0";
  more["OMPI_COMM_WORLD_SIZE"] = "1";
  BOOST_TEST(bootstrap_in(mpirun(more)).world_size == 1);
}

BOOST_AUTO_TEST_CASE(a_session_without_a_run_id_takes_that_of_the_environment) {
  const auto port = free_port();
  const Environment environment(Variables{{"SHARDWIRE_RUN_ID", "from here"}});
  const Session host = Session::join(member(0, 2, port), quick());
  Bootstrap other = member(1, 2, port);
  other.run_id = "from elsewhere";
  refused(ErrorCode::invalid_argument, "this is job 'from here'", [&] { Session::join(other, quick()); });
  Session::join(member(1, 2, port), quick()).close(5s);
}

BOOST_AUTO_TEST_CASE(what_options_leave_open_the_environment_says) {
  const Environment environment(Variables{{"SHARDWIRE_STAGING_BYTES", "3M"}, {"SHARDWIRE_TRANSPORT", "loopback"}});
  Session session = Session::join(member(0, 1, free_port()), {});
  BOOST_TEST(session.usage().serving_budget_bytes == 3U << 20);
  BOOST_REQUIRE_EQUAL(session.transports().size(), 1U);
  BOOST_TEST(session.transports().front().starts_with("loopback"));
  SessionOptions own;
  own.staging_bytes = 1u << 20;
  BOOST_TEST(Session::join(member(0, 1, free_port()), own).usage().serving_budget_bytes == 1U << 20);
}

BOOST_AUTO_TEST_CASE(the_time_to_join_comes_from_the_environment) {
  const Environment environment(Variables{{"SHARDWIRE_JOIN_TIMEOUT", "0.2"}, {"SHARDWIRE_TRANSPORT", "loopback"}});
  const auto began = std::chrono::steady_clock::now();
  refused(ErrorCode::timed_out, "could not join", [] { Session::join(member(1, 2, free_port()), {}); });
  BOOST_TEST((std::chrono::steady_clock::now() - began < 20s));
}

BOOST_AUTO_TEST_CASE(a_variable_that_makes_no_sense_is_refused_by_name) {
  const auto refuses = [](const std::string& name, const std::string& value) {
    const Environment environment(Variables{{name, value}});
    SessionOptions options;
    if (name != "SHARDWIRE_TRANSPORT") options.transport = transport_under_test();
    refused(name == "SHARDWIRE_TRANSPORT" ? ErrorCode::unsupported : ErrorCode::invalid_argument,
            name == "SHARDWIRE_TRANSPORT" || name == "SHARDWIRE_CALIBRATION" ? value : name,
            [&] { Session::join(member(0, 1, free_port()), options); });
  };
  refuses("SHARDWIRE_STAGING_BYTES", "much");
  refuses("SHARDWIRE_STAGING_BYTES", "0");
  refuses("SHARDWIRE_JOIN_TIMEOUT", "soon");
  refuses("SHARDWIRE_JOIN_TIMEOUT", "-1");
  refuses("SHARDWIRE_LOG", "loud");
  refuses("SHARDWIRE_LOG_FORMAT", "xml");
  for (const char* port : {"none", "0", "65536", "9464x"}) refuses("SHARDWIRE_METRICS_PORT", port);
  refuses("SHARDWIRE_CALIBRATION", "/nonexistent/costs.json");
  refuses("SHARDWIRE_TRANSPORT", "carrier-pigeon");
  refuses("SHARDWIRE_COPY_KERNEL", "mmx");
  for (const memory::CopyKernel& kernel : memory::copy_kernels()) {
    if (!kernel.has_feature()) refuses("SHARDWIRE_COPY_KERNEL", std::string(kernel.name));
  }
}

BOOST_AUTO_TEST_CASE(a_port_for_metrics_needs_their_folder) {
  const Environment environment(Variables{{"SHARDWIRE_METRICS_PORT", "9464"}});
  refused(ErrorCode::invalid_argument, "needs SHARDWIRE_METRICS_FOLDER",
          [] { Session::join(member(0, 1, free_port()), quick()); });
}

BOOST_AUTO_TEST_CASE(the_environment_may_name_the_copy_kernel) {
  const memory::CopyClass kind(4096, false);
  {
    const Environment environment(Variables{{"SHARDWIRE_COPY_KERNEL", "memcpy"}});
    Session::join(member(0, 1, free_port()), quick());
    BOOST_TEST(memory::kernel_choice().best(kind).name == "memcpy");
  }
  const Environment environment(Variables{});
  Session::join(member(0, 1, free_port()), quick());
  BOOST_TEST(memory::kernel_choice().best(kind).name != "memcpy");
}

BOOST_AUTO_TEST_CASE(kernels_of_a_calibration_are_begun_with_on_the_same_processor) {
  memory::KernelChoice& choice = memory::kernel_choice();
  const auto kinds = memory::CopyClass::all();
  const auto open =
      std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return choice.made(kind) == nullptr; });
  BOOST_REQUIRE((open != kinds.end()));
  // Not the kernel that would be chosen first.
  std::string kernel;
  for (const memory::CopyKernel& one : memory::copy_kernels()) {
    if (one.has_feature() && one.name != choice.best(*open).name) kernel = one.name;
  }
  BOOST_REQUIRE(kernel != "");
  BOOST_REQUIRE(support::processor_model() != "");
  const Environment environment(Variables{});
  const auto join_with = [&](const std::string& processor, const std::string& name) {
    SessionOptions options = quick();
    options.costs.emplace();
    options.costs->set_tuning({.kernels = {processor, {{"no such runs", name}, {std::string(open->name()), name}}}});
    Session::join(member(0, 1, free_port()), options);
  };
  join_with(support::processor_model() + " the second", kernel);
  BOOST_TEST(choice.made(*open) == nullptr);
  join_with("", kernel);
  BOOST_TEST(choice.made(*open) == nullptr);
  join_with(support::processor_model(), "of another version");
  BOOST_TEST(choice.made(*open) == nullptr);
  join_with(support::processor_model(), kernel);
  BOOST_REQUIRE(choice.made(*open) != nullptr);
  BOOST_TEST(choice.made(*open)->name == kernel);
}

BOOST_AUTO_TEST_CASE(the_log_answers_what_a_newcomer_asks) {
  const Environment environment(Variables{});
  Log log;
  const auto port = free_port();
  Bootstrap first = member(0, 2, port);
  first.run_id = "night";
  Bootstrap second = member(1, 2, port);
  second.run_id = "night";
  Session host = Session::join(first, logged(log));
  Session reader = Session::join(second, logged(log));
  TestShard held({{"w", "m"}, DType::f32, {64}}, Layout::replicated(), Rank{0});
  TestShard wanted({{"w", "m"}, DType::f32, {64}}, Layout::replicated(), Rank{0});
  Catalog source(Rank{0}, 1);
  held.add_to(source);
  Catalog target(Rank{0}, 1);
  wanted.add_to(target);
  Publication publication = host.publish(source, {.name = "weights", .step = 12});
  RestoreOptions options = within(patience);
  options.name = "weights";
  reader.restore(target, options).wait();
  publication.retire(5s);
  BOOST_TEST(log.says("member 1 of 2 joined job 'night' at 127.0.0.1 port " + std::to_string(port) + ", over lo"));
  BOOST_TEST(log.says("member 1 of 2 joined from 127.0.0.1 port "));
  BOOST_TEST(log.says("member 0 published 'weights', step 12: 1 tensors, 256 bytes here"));
  BOOST_TEST(log.says("restore of 'weights' as layout rank 0: 1 pieces, 256 bytes from 1 sources"));
  BOOST_TEST(log.says("path to source rank 0, member 0: "));
  BOOST_TEST(log.says("member 0 withdrew 'weights', step 12"));
}

BOOST_AUTO_TEST_CASE(without_a_sink_the_log_goes_to_standard_error_from_its_level_on) {
  const auto lines = [](const Variables& variables) {
    const Environment environment(variables);
    return standard_error_of([] { Session::join(member(0, 1, free_port()), quick()); });
  };
  const std::string text = without_time(lines({{"SHARDWIRE_LOG", "info"}}));
  BOOST_TEST(text.starts_with(" INFO  shardwire run=- member=0 member 0 of 1 joined"), text);
  const std::string named = without_time(lines({{"SHARDWIRE_LOG", "info"}, {"SHARDWIRE_RUN_ID", "night"}}));
  BOOST_TEST(named.starts_with(" INFO  shardwire run=night member=0 member 0 of 1 joined job 'night' "), named);
  const std::string json = lines({{"SHARDWIRE_LOG", "info"}, {"SHARDWIRE_LOG_FORMAT", "json"}});
  BOOST_REQUIRE(json.starts_with("{\"time\":\""));
  const std::string fields = without_time(json.substr(9));
  const std::string joined = "\",\"level\":\"INFO\",\"run\":null,\"member\":0,\"message\":\"member 0 of 1 joined";
  BOOST_TEST(fields.starts_with(joined), fields);
  BOOST_TEST(lines({{"SHARDWIRE_LOG", "warning"}}) == "");
  BOOST_TEST(lines({{"SHARDWIRE_LOG_FORMAT", "json"}}) == "");
  BOOST_TEST(lines({}) == "");
}

BOOST_AUTO_TEST_CASE(a_format_that_is_misspelt_is_refused_with_the_nearest) {
  const Environment environment(Variables{{"SHARDWIRE_LOG_FORMAT", "jsno"}});
  refused(ErrorCode::invalid_argument,
          "SHARDWIRE_LOG_FORMAT='jsno' is not a format (did you mean 'json'?): use text, json",
          [] { Session::join(member(0, 1, free_port()), quick()); });
}

BOOST_AUTO_TEST_CASE(a_line_of_text_ends_with_the_message_as_it_is) {
  const std::string text = "'a\\b\"\xff' = 1\n  and more";
  const auto line = [&](const LogOrigin& origin) { return without_time(warning_line(LogFormat::text, origin, text)); };
  BOOST_TEST(line({"llama-17", 3}) == " WARN  shardwire run=llama-17 member=3 " + text + "\n");
  BOOST_TEST(line({"", std::nullopt}) == " WARN  shardwire run=- member=- " + text + "\n");
  // A run id cannot be taken for more than one field, or for the end of the line.
  BOOST_TEST(line({"a b", 0}) == " WARN  shardwire run=\"a b\" member=0 " + text + "\n");
  BOOST_TEST(line({"a\nmember=7", 0}) == " WARN  shardwire run=\"a\\nmember=7\" member=0 " + text + "\n");
}

BOOST_AUTO_TEST_CASE(a_line_of_json_is_valid_whatever_bytes_the_message_has) {
  const auto line = [](const LogOrigin& origin, std::string_view text) {
    const std::string written = warning_line(LogFormat::json, origin, text);
    BOOST_REQUIRE(written.starts_with("{\"time\":\""));
    return without_time(written.substr(9));
  };
  const std::string plain = "\",\"level\":\"WARN\",\"run\":\"night\",\"member\":3,\"message\":\"plain\"}\n";
  BOOST_TEST(line({"night", 3}, "plain") == plain);
  const std::string empty = "\",\"level\":\"WARN\",\"run\":\"a \\\"b\\\"\",\"member\":null,\"message\":\"\"}\n";
  BOOST_TEST(line({"a \"b\"", std::nullopt}, "") == empty);
  // Quotes, a backslash, control characters, a byte that no UTF-8 has, and a character that is cut off.
  const std::string text = std::string("say \"x\\y\"\n\t") + '\0' + "\x1b \xff caf\xc3\xa9 \xe2\x82";
  const std::string escaped = "say \\\"x\\\\y\\\"\\n\\t\\u0000\\u001b \xef\xbf\xbd caf\xc3\xa9 \xef\xbf\xbd";
  const std::string bytes = "\",\"level\":\"WARN\",\"run\":null,\"member\":0,\"message\":\"" + escaped + "\"}\n";
  BOOST_TEST(line({"", 0}, text) == bytes);
}

BOOST_AUTO_TEST_CASE(the_default_log_leaves_out_what_is_below_its_level) {
  const auto written = [](LogLevel least, LogLevel level) {
    return !standard_error_of([&] { standard_error_log({least, LogFormat::text}, {"", 0})(level, "x"); }).empty();
  };
  const std::vector levels{LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error};
  for (const LogLevel least : levels) {
    for (const LogLevel level : levels) BOOST_TEST(written(least, level) == (level >= least));
  }
}

BOOST_AUTO_TEST_SUITE_END()
