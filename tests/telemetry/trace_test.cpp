// SPDX-License-Identifier: Apache-2.0
// The file of spans that Perfetto opens.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/deadline.hpp"
#include "support/fake_root.hpp"
#include "telemetry/trace.hpp"

BOOST_AUTO_TEST_SUITE(trace)

using namespace shardwire::telemetry;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

const Span::Time start(1000s);

/// A trace of member 3, and what its file has.
struct Written {
  shardwire::test::FakeRoot root;
  Trace::Setup setup;
  std::vector<std::string> failures;
  std::optional<Trace> trace;

  /// Written at the end alone, unless an interval is given.
  explicit Written(std::chrono::milliseconds interval = 1h)
      : setup{.path = (root.path / "t.json").string(),
              .run_id = "night",
              .member = 3,
              .session = 0xabc,
              .session_began = start - 5ms,
              .began = start,
              .interval = interval,
              .patience = 1h} {}
  void open() {
    trace.emplace(setup, [this](const std::string& why) { failures.push_back(why); });
  }
  void open_and_await_file() {
    open();
    BOOST_REQUIRE(shardwire::test::run_until([] {}, [&] { return has_events(1); }, 120s));
  }
  /// A reader may see a part of a write.
  [[nodiscard]] bool has_events(std::size_t count) const {
    const json read = json::parse(text(), nullptr, false);
    return read.is_object() && read.at("traceEvents").size() == count;
  }
  [[nodiscard]] std::string text() const {
    std::ifstream file(setup.path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] json content() const { return json::parse(text()); }
  /// Events of one phase, in their order.
  [[nodiscard]] std::vector<json> events(const std::string& phase) const {
    std::vector<json> found;
    for (const json all = content(); const json& event : all.at("traceEvents")) {
      if (event.at("ph") == phase) found.push_back(event);
    }
    return found;
  }
};

Span span(std::string_view name, std::chrono::nanoseconds began, std::chrono::nanoseconds ended) {
  return {name, start + began, start + ended};
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_member_stands_before_the_ending) {
  BOOST_TEST(trace_file_name("/tmp/trace.json", 3) == "/tmp/trace-3.json");
  BOOST_TEST(trace_file_name("trace", 12) == "trace-12");
  BOOST_TEST(trace_file_name("/tmp/run.7/trace", 0) == "/tmp/run.7/trace-0");
  BOOST_TEST(trace_file_name("/tmp/.json", 0) == "/tmp/.json-0");
  BOOST_TEST(trace_file_name(".json", 0) == ".json-0");
}

BOOST_AUTO_TEST_CASE(a_span_has_its_time_and_its_attributes) {
  Written written;
  written.open();
  written.trace->add("source rank 1", {span("shardwire.source.move", 1500us, 4000us)},
                     {{"shardwire.bytes", std::int64_t{1} << 40}, {"shardwire.method", "zcopy"}, {"x", 0.5}});
  written.trace->end();
  BOOST_REQUIRE(written.events("X").size() == 1U);
  BOOST_TEST(written.events("X").front() == json::parse(R"({"name":"shardwire.source.move","ph":"X","pid":3,"tid":1,
    "ts":1500,"dur":2500,"args":{"seconds":0.0025,"shardwire.bytes":1099511627776,"shardwire.method":"zcopy","x":0.5}})"));
  BOOST_REQUIRE(written.events("M").size() == 2U);
  BOOST_TEST(written.events("M")[0].at("name") == "process_name");
  BOOST_TEST(written.events("M")[1].at("name") == "thread_name");
  BOOST_TEST(written.events("M")[1].at("args").at("name") == "source rank 1");
  BOOST_TEST(written.failures.empty());
}

BOOST_AUTO_TEST_CASE(the_first_line_has_what_aligns_the_clock) {
  Written written;
  written.open();
  written.trace->end();
  const json data = written.content().at("otherData");
  BOOST_TEST(data.at("shardwire.run.id") == "night");
  BOOST_TEST(data.at("shardwire.member") == 3);
  BOOST_TEST(data.at("shardwire.session") == "0000000000000abc");
  BOOST_TEST(data.at("shardwire.began_ns") == 1'000'000'000'000);
  BOOST_TEST(data.at("shardwire.session.began_ns") == 999'995'000'000);
  BOOST_TEST(data.at("shardwire.began_unix_ns").is_number_integer());
  BOOST_TEST(data.at("host.boot.id").is_string());
}

BOOST_AUTO_TEST_CASE(the_file_is_whole_before_the_first_span_and_after_each) {
  Written written(1ms);
  written.open_and_await_file();
  for (std::size_t count = 1; count <= 3; ++count) {
    written.trace->add("restore", {span("a", count * 1ms, (count + 1) * 1ms)});
    BOOST_TEST(shardwire::test::run_until([] {}, [&] { return written.has_events(2 + count); }, 120s));
  }
}

BOOST_AUTO_TEST_CASE(names_from_outside_stay_texts) {
  Written written;
  written.setup.run_id = "a\"b\\c\n";
  written.open();
  written.trace->add("row \"1\"\n", {span("shard", 0ms, 1ms)},
                     {{"shardwire.publication.name", "\xff/\"}],\n"}, {"x", std::numeric_limits<double>::infinity()}});
  written.trace->end();
  BOOST_TEST(written.content().at("otherData").at("shardwire.run.id") == "a\"b\\c\n");
  BOOST_TEST(written.events("M")[1].at("args").at("name") == "row \"1\"\n");
  const json event = written.events("X").front();
  BOOST_TEST(event.at("args").at("shardwire.publication.name") == "\xEF\xBF\xBD/\"}],\n");
  BOOST_TEST(event.at("args").at("x").is_null());
}

BOOST_AUTO_TEST_CASE(spans_in_a_span_stay_in_it_when_times_are_rounded) {
  Written written;
  written.open();
  written.trace->add("restore",
                     {span("whole", 1999ns, 9001ns), span("first", 1999ns, 5500ns), span("last", 5500ns, 9001ns)});
  written.trace->end();
  const auto events = written.events("X");
  BOOST_REQUIRE(events.size() == 3U);
  const auto began = [](const json& event) { return event.at("ts").get<std::int64_t>(); };
  const auto ended = [&](const json& event) { return began(event) + event.at("dur").get<std::int64_t>(); };
  BOOST_TEST(began(events[0]) == began(events[1]));
  BOOST_TEST(ended(events[1]) == began(events[2]));
  BOOST_TEST(ended(events[2]) == ended(events[0]));
}

BOOST_AUTO_TEST_CASE(seconds_have_all_their_nanoseconds) {
  Written written;
  written.open();
  written.trace->add("restore", {span("whole", 0ns, 3'000'000'005ns), span("first", 0ns, 7ns), span("none", 7ns, 7ns)});
  written.trace->end();
  std::vector<double> seconds;
  for (const json& event : written.events("X")) seconds.push_back(event.at("args").at("seconds"));
  BOOST_TEST(seconds == (std::vector<double>{3.000000005, 7e-9, 0}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(attributes_are_those_of_the_first_span_of_their_group) {
  Written written;
  written.open();
  std::string text = "first";
  written.trace->add("restore", {span("a", 0ms, 2ms), span("a.plan", 0ms, 1ms)}, {{"x", text}});
  text = "other";  // which a span that was added does not see
  written.trace->add("restore", {span("b", 2ms, 3ms)}, {{"x", text}});
  written.trace->end();
  const auto events = written.events("X");
  BOOST_REQUIRE(events.size() == 3U);
  BOOST_TEST(events[0].at("args").at("x") == "first");
  BOOST_TEST(events[1].at("args").size() == 1U);
  BOOST_TEST(events[2].at("args").at("x") == "other");
}

// More than one write has.
BOOST_AUTO_TEST_CASE(many_spans_stay_in_their_order) {
  Written written;
  written.open();
  constexpr int count = 20'000;
  for (int i = 0; i < count; ++i) written.trace->add("restore", {span("a", i * 1us, (i + 1) * 1us)});
  written.trace->end();
  const auto events = written.events("X");
  BOOST_REQUIRE(events.size() == static_cast<std::size_t>(count));
  BOOST_TEST(written.text().size() > 1U << 20U);
  for (int i = 0; i < count; ++i) {
    if (events[static_cast<std::size_t>(i)].at("ts") != i) BOOST_FAIL(events[static_cast<std::size_t>(i)].dump());
  }
}

BOOST_AUTO_TEST_CASE(groups_that_overlap_have_rows_of_their_own) {
  Written written;
  written.open();
  written.trace->add("restore", {span("b", 10ms, 20ms)});
  written.trace->add("restore", {span("a", 0ms, 30ms), span("a.plan", 0ms, 5ms)});
  written.trace->add("restore", {span("c", 20ms, 21ms)});
  written.trace->add("join", {span("d", 0ms, 1ms)});
  written.trace->end();
  std::vector<int> rows;
  for (const json& event : written.events("X")) rows.push_back(event.at("tid"));
  BOOST_TEST(rows == (std::vector<int>{1, 2, 2, 1, 3}), boost::test_tools::per_element());
  const auto named = written.events("M");
  BOOST_REQUIRE(named.size() == 4U);
  BOOST_TEST(named[2].at("args").at("name") == "restore (2)");
}

BOOST_AUTO_TEST_CASE(spans_that_wait_have_a_limit_and_are_counted_beyond_it) {
  Written written;
  written.setup.max_waiting_bytes = 4096;
  written.open_and_await_file();
  for (int i = 0; i < 1000; ++i) written.trace->add("restore", {span("a", 0ms, 0ms)});
  written.trace->end();
  BOOST_TEST(written.text().size() < 6000U);
  const std::size_t kept = written.events("X").size();
  BOOST_TEST(kept > 10U);
  BOOST_TEST(written.content().at("shardwire.spans.dropped") == 1000 - kept);
  BOOST_REQUIRE(written.failures.size() == 1U);
  BOOST_TEST(written.failures.front() ==
             "the trace is incomplete: " + written.setup.path + ": there are more spans than it may have");
}

BOOST_AUTO_TEST_CASE(a_file_has_a_limit) {
  Written written(1ms);
  written.setup.max_file_bytes = 4096;
  written.open();
  for (int i = 0; i < 1000; ++i) written.trace->add("restore", {span("a", 0ms, 0ms)});
  written.trace->end();
  BOOST_TEST(written.text().size() < 6000U);
  BOOST_TEST(written.content().at("shardwire.spans.dropped") == 1000 - written.events("X").size());
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_there_is_reported_once) {
  Written written;
  written.setup.path = (written.root.path / "none/t.json").string();
  written.open();
  written.trace->add("restore", {span("a", 0ms, 1ms)});
  written.trace->end();
  BOOST_REQUIRE(written.failures.size() == 1U);
  BOOST_TEST(written.failures.front() ==
             "the trace is incomplete: " + written.setup.path + ": cannot be opened: No such file or directory");
}

BOOST_AUTO_TEST_CASE(a_full_disk_is_reported_once_and_ends_the_trace) {
  if (!std::filesystem::exists("/dev/full")) return;
  Written written;
  written.setup.path = "/dev/full";
  written.open();
  written.trace->add("restore", {span("a", 0ms, 1ms)});
  written.trace->end();
  BOOST_REQUIRE(written.failures.size() == 1U);
  BOOST_TEST(written.failures.front() ==
             "the trace is incomplete: /dev/full: cannot be written: No space left on device");
}

// As the folder of a file server that does not answer. The pipe is opened for writing once this case reads it.
BOOST_AUTO_TEST_CASE(neither_the_start_nor_the_end_waits_for_a_folder_that_hangs) {
  const shardwire::test::Deadline deadline(120s);
  Written written;
  written.setup.patience = 1ms;
  BOOST_REQUIRE(::mkfifo(written.setup.path.c_str(), 0600) == 0);
  written.open();
  written.trace->add("restore", {span("a", 0ms, 1ms)});
  written.trace.reset();
  BOOST_TEST(written.text().empty());  // a pipe cannot be written at an offset; the thread closes it then
  BOOST_TEST(written.failures.empty());
}

BOOST_AUTO_TEST_CASE(spans_after_the_end_are_not_written) {
  Written written;
  written.open();
  written.trace->end();
  const std::string text = written.text();
  written.trace->add("restore", {span("a", 0ms, 1ms)});
  written.trace->end();
  BOOST_TEST(written.text() == text);
}

BOOST_AUTO_TEST_SUITE_END()
