// SPDX-License-Identifier: Apache-2.0
// The main of every Boost.Test runner. It differs from Boost's own in some ways: --unit=AREA/NAME leaves only the cases of
// AREA/NAME_test.cpp and may be given more than once; a run in which no case ran exits 77, so that Meson shows SKIP instead of
// OK; and the last line on standard output counts the cases for summary.py:
//   cases: 12 passed, 0 failed, 1 skipped
// In a build with a sanitizer, a report of any process that a case starts fails the run too: exit status 66.
#define BOOST_TEST_NO_MAIN
#include <algorithm>
#include <boost/cstdlib.hpp>
#include <boost/test/results_collector.hpp>
#include <boost/test/tree/observer.hpp>
#include <boost/test/tree/test_case_counter.hpp>
#include <boost/test/tree/traverse.hpp>
#include <boost/test/tree/visitor.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/sanitizer.hpp"

namespace {

namespace ut = boost::unit_test;

constexpr int exit_skipped = 77;   // Meson's exit status for skipped tests
constexpr int exit_reported = 66;  // the thread sanitizer's for a report

/// Calls `visit` with each case at or below a unit, whatever its run status.
class CaseVisitor : public ut::test_tree_visitor {
 public:
  explicit CaseVisitor(std::function<void(const ut::test_case&)> visit) : visit_(std::move(visit)) {}
  void visit(const ut::test_case& unit) override { visit_(unit); }

 private:
  std::function<void(const ut::test_case&)> visit_;
};

class CaseCounter : public ut::test_observer {
 public:
  void test_unit_finish(const ut::test_unit& unit, unsigned long /*microseconds*/) override {
    if (unit.p_type != ut::TUT_CASE) return;
    ++(ut::results_collector.results(unit.p_id).passed() ? passed_ : failed_);
  }

  // Boost reports a unit that a filter excludes like a disabled one. Only cases that their author disabled, or that
  // their precondition excluded, count as skipped.
  void test_unit_skipped(const ut::test_unit& unit, boost::unit_test::const_string reason) override {
    if (!unit.is_enabled() && unit.p_default_status != ut::test_unit::RS_DISABLED) return;
    std::string why(reason.begin(), reason.end());
    if (why.empty()) why = "its precondition does not hold";
    CaseVisitor visitor([&](const ut::test_case& skipped) {
      ++skipped_;
      std::printf("skipped: %s: %s\n", skipped.full_name().c_str(), why.c_str());
    });
    ut::traverse_test_tree(unit.p_id, visitor, true);
  }

  int priority() override { return 100; }  // after the results collector, whose verdict it reads

  [[nodiscard]] bool nothing_ran() const { return passed_ + failed_ == 0; }
  void print() const {
    std::printf("cases: %u passed, %u failed, %u skipped\n", passed_, failed_, skipped_);
    std::fflush(stdout);
  }

 private:
  unsigned passed_ = 0;
  unsigned failed_ = 0;
  unsigned skipped_ = 0;
};

bool any_case_selected() {
  ut::test_case_counter counter;
  ut::traverse_test_tree(ut::framework::master_test_suite().p_id, counter);
  return counter.p_count != 0;
}

/// Collects the top-level suites.
class TopVisitor : public ut::test_tree_visitor {
 public:
  bool test_suite_start(const ut::test_suite& unit) override {
    if (unit.p_parent_id == ut::INV_TEST_UNIT_ID) return true;
    suites.push_back(&unit);
    return false;
  }
  std::vector<const ut::test_suite*> suites;
};

/// Removes each --unit=AREA/NAME from the arguments; returns the ends of their files' paths.
std::set<std::string> take_units(int& argc, char** argv) {
  constexpr std::string_view option = "--unit=";
  std::set<std::string> files;
  int left = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(option)) {
      files.insert("/" + std::string(argument.substr(option.size())) + "_test.cpp");
    } else {
      argv[left++] = argv[i];
    }
  }
  argc = left;
  argv[argc] = nullptr;
  return files;
}

/// An argument error, distinct from a run without cases.
class UnknownUnit : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Removes the suites of other files from the tree. Call it before the framework reads the tree.
void keep_only(const std::set<std::string>& files) {
  ut::test_suite& master = ut::framework::master_test_suite();
  TopVisitor top;
  ut::traverse_test_tree(master, top, true);
  std::set<std::string> found;
  std::vector<ut::test_unit_id> others;
  for (const ut::test_suite* suite : top.suites) {
    const std::string_view path(suite->p_file_name.begin(), suite->p_file_name.size());
    const auto file = std::ranges::find_if(files, [path](const std::string& end) { return path.ends_with(end); });
    if (file == files.end()) {
      others.push_back(suite->p_id);
    } else {
      found.insert(*file);
    }
  }
  for (const std::string& file : files) {
    if (!found.contains(file)) throw UnknownUnit("no suite of *" + file + " is in this program");
  }
  for (const ut::test_unit_id other : others) master.remove(other);
}

/// Folder for the reports of sanitizers of all processes that the cases start: most of these are killed, so their exit statuses
/// tell nothing. This process has read its own options before, and goes on to report to standard error.
class ReportsOfChildren {
 public:
  ReportsOfChildren() {
    if (!shardwire::test::with_sanitizer) return;
    std::string folder = (std::filesystem::temp_directory_path() / "reports.XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no folder for reports of sanitizers");
    folder_ = folder;
    for (const char* variable : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
      const char* const before = std::getenv(variable);
      const std::string options = before == nullptr ? "" : std::string(before) + ":";
      ::setenv(variable, (options + "log_path=" + folder + "/report").c_str(), 1);
    }
  }
  ~ReportsOfChildren() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  ReportsOfChildren(const ReportsOfChildren&) = delete;
  ReportsOfChildren& operator=(const ReportsOfChildren&) = delete;

  /// Prints them, and returns whether there are any.
  [[nodiscard]] bool print() const {
    bool any = false;
    if (folder_.empty()) return any;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::ifstream file(entry.path());
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      if (text.find("SUMMARY: ") == std::string::npos && text.find("runtime error: ") == std::string::npos) continue;
      any = true;
      std::fprintf(stderr, "report of a process that a case has started:\n%s\n", text.c_str());
    }
    return any;
  }

 private:
  std::filesystem::path folder_;
};

int run_cases(int argc, char** argv) {
  CaseCounter counter;
  const auto files = take_units(argc, argv);
  try {
    ut::framework::init([] { return true; }, argc, argv);
    if (!files.empty()) keep_only(files);
    ut::framework::finalize_setup_phase();
    ut::framework::register_observer(counter);
    ut::framework::run();
  } catch (const UnknownUnit& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return boost::exit_exception_failure;
  } catch (const ut::framework::nothing_to_test& asked) {  // --help and similar options
    return asked.m_result_code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    if (any_case_selected()) return boost::exit_exception_failure;
  }
  ut::framework::deregister_observer(counter);
  const int verdict = ut::results_collector.results(ut::framework::master_test_suite().p_id).result_code();
  counter.print();
  return counter.nothing_ran() && verdict == boost::exit_success ? exit_skipped : verdict;
}

bool asks_for_list(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with("--list_")) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (asks_for_list(argc, argv)) return ut::unit_test_main([] { return true; }, argc, argv);
  const ReportsOfChildren reports;
  const int verdict = run_cases(argc, argv);
  ut::framework::shutdown();
  return reports.print() ? exit_reported : verdict;
}
