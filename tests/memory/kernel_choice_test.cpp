// SPDX-License-Identifier: Apache-2.0
#include "memory/kernel_choice.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "memory/each_kernel.hpp"
#include "memory/stream.hpp"
#include "support/bytes.hpp"
#include "support/refused.hpp"

BOOST_AUTO_TEST_SUITE(kernel_choice)

using namespace shardwire;
using namespace shardwire::test;
using memory::CopyClass;
using memory::CopyKernel;
using memory::KernelChoice;
using memory::LineRun;
using memory::Stores;

namespace {

constexpr std::size_t slice = memory::StreamingCopier::slice_bytes;
constexpr auto& samples = KernelChoice::samples_of_round;
// That three candidates need, if one of them is clearly slower.
constexpr int most_of_each = samples[0] + samples[1];
constexpr int in_all = 3 * samples[0] + 2 * samples[1];

std::atomic<std::size_t> copied_by_first = 0;
std::atomic<std::size_t> copied_by_second = 0;

template <std::atomic<std::size_t>& counter>
void copy_and_count(std::span<const LineRun> now, std::span<const LineRun> /*next*/) {
  for (const LineRun& run : now) {
    std::memcpy(run.target, run.source, run.lines * memory::line_bytes);
    counter += run.lines * memory::line_bytes;
  }
}
bool has_it() {
  return true;
}
bool lacks_it() {
  return false;
}

constexpr CopyKernel made_up[] = {
    {"first", Stores::streaming, "", has_it, copy_and_count<copied_by_first>},
    {"absent", Stores::streaming, "fancy", lacks_it, nullptr},
    {"second", Stores::streaming, "", has_it, copy_and_count<copied_by_second>},
    {"cached", Stores::cached, "", has_it, copy_and_count<copied_by_second>},
};
const CopyKernel& first = made_up[0];
const CopyKernel& second = made_up[2];
const CopyKernel& cached = made_up[3];
const CopyClass short_runs(256, false);
const CopyClass long_runs(1 << 20, false);

void record_all(KernelChoice& choice, double by_first, double by_second, double by_cached) {
  for (int i = 0; i < most_of_each; ++i) {
    choice.record(short_runs, first, by_first);
    choice.record(short_runs, second, by_second);
    choice.record(short_runs, cached, by_cached);
  }
}

void copy(KernelChoice& choice, std::byte* target, const std::byte* source, std::size_t size) {
  memory::StreamingCopier copier(choice, long_runs, size);
  copier.add(target, source, size);
  copier.finish();
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_fastest_is_chosen_once_each_has_its_samples) {
  KernelChoice choice(made_up);
  BOOST_TEST(choice.made(short_runs) == nullptr);
  BOOST_TEST(choice.best(short_runs).name == "first");
  std::vector<std::string_view> tried;
  while (choice.made(short_runs) == nullptr) {
    const CopyKernel& kernel = choice.candidate(short_runs);
    tried.push_back(kernel.name);
    choice.record(short_runs, kernel, &kernel == &second ? 2e9 : &kernel == &first ? 1.9e9 : 1e9);
    BOOST_REQUIRE(tried.size() <= in_all);
  }
  BOOST_TEST(tried.size() == in_all);
  const auto times = [&](const char* name) { return std::count(tried.begin(), tried.end(), name); };
  BOOST_TEST(times("first") == most_of_each);
  BOOST_TEST(times("second") == most_of_each);
  BOOST_TEST(times("cached") == samples[0]);
  BOOST_TEST(choice.made(short_runs)->name == "second");
  BOOST_TEST(choice.made(long_runs) == nullptr);  // another class
  for (const KernelChoice::Chosen& chosen : choice.chosen()) {
    const bool made = chosen.kind.name() == short_runs.name();
    BOOST_TEST(chosen.made == made);
    BOOST_TEST(chosen.kernel == (made ? "second" : "first"));
  }
  record_all(choice, 9e9, 1e9, 1e9);
  BOOST_TEST(choice.made(short_runs)->name == "second");  // permanently
}

BOOST_AUTO_TEST_CASE(a_few_odd_samples_do_not_decide) {
  KernelChoice choice(made_up);
  for (int i = 0; i < most_of_each; ++i) {
    choice.record(short_runs, first, i % 4 == 1 ? 9e9 : 1e9);
    choice.record(short_runs, second, i % 4 == 1 ? 1e6 : 2e9);
    choice.record(short_runs, cached, 1e8);
  }
  BOOST_TEST(choice.made(short_runs)->name == "second");
}

// The first copies of a process may be of bytes in its cache.
BOOST_AUTO_TEST_CASE(what_is_faster_later_on_is_chosen) {
  KernelChoice choice(made_up);
  for (int i = 0; i < samples[0]; ++i) {
    choice.record(short_runs, first, 8e9);
    choice.record(short_runs, second, 7e9);
    choice.record(short_runs, cached, 1e9);
  }
  BOOST_TEST(choice.best(short_runs).name == "first");
  BOOST_TEST(choice.made(short_runs) == nullptr);
  for (int i = 0; i < samples[1]; ++i) {
    choice.record(short_runs, first, 4e9);
    choice.record(short_runs, second, 7e9);
    choice.record(short_runs, cached, 99e9);  // is out
  }
  BOOST_TEST(choice.made(short_runs)->name == "second");
}

BOOST_AUTO_TEST_CASE(stores_through_the_caches_must_be_faster_by_more_than_they_look) {
  KernelChoice hardly(made_up);
  record_all(hardly, 1e9, 1e9, 1.2e9);
  BOOST_TEST(hardly.made(short_runs)->name == "first");
  KernelChoice clearly(made_up);
  record_all(clearly, 1e9, 1e9, 1.3e9);
  BOOST_TEST(clearly.made(short_runs)->name == "cached");
}

BOOST_AUTO_TEST_CASE(a_forced_kernel_is_used_at_once_until_it_is_no_longer_forced) {
  KernelChoice choice(made_up);
  choice.force("second");
  for (const CopyClass kind : CopyClass::all()) {
    BOOST_TEST(choice.made(kind)->name == "second");
    BOOST_TEST(choice.best(kind).name == "second");
  }
  choice.force("");
  BOOST_TEST(choice.made(short_runs) == nullptr);
  BOOST_TEST(choice.best(short_runs).name == "first");
}

BOOST_AUTO_TEST_CASE(a_choice_that_was_made_before_is_begun_with_where_it_fits) {
  KernelChoice choice(made_up);
  BOOST_TEST(!choice.begin_with("runs to 1 KiB", "absent"));
  BOOST_TEST(!choice.begin_with("runs to 1 KiB", "third"));
  BOOST_TEST(!choice.begin_with("runs to 1 MiB", "second"));
  for (const CopyClass kind : CopyClass::all()) BOOST_TEST(choice.made(kind) == nullptr);
  BOOST_TEST(choice.begin_with("runs to 1 KiB", "second"));
  BOOST_TEST(choice.made(short_runs)->name == "second");
  BOOST_TEST(choice.made(long_runs) == nullptr);
  record_all(choice, 9e9, 1e9, 1e9);
  BOOST_TEST(choice.made(short_runs)->name == "second");
  BOOST_TEST(!choice.begin_with("runs to 1 KiB", "first"));
  BOOST_TEST(choice.best(short_runs).name == "second");
  choice.force("first");
  BOOST_TEST(choice.made(short_runs)->name == "first");

  KernelChoice measured(made_up);
  record_all(measured, 9e9, 1e9, 1e9);
  BOOST_TEST(!measured.begin_with("runs to 1 KiB", "second"));
  BOOST_TEST(measured.made(short_runs)->name == "first");
}

BOOST_AUTO_TEST_CASE(a_name_that_no_kernel_has_and_a_kernel_that_cannot_run_are_refused) {
  KernelChoice choice(made_up);
  refused(ErrorCode::invalid_argument, "'third' is no copy kernel; this processor has first, second, cached",
          [&] { choice.force("third"); });
  refused(ErrorCode::invalid_argument, "'absent' needs fancy, which this processor lacks",
          [&] { choice.force("absent"); });
  BOOST_TEST(choice.made(short_runs) == nullptr);
}

BOOST_AUTO_TEST_CASE(lengths_of_runs_have_classes_with_names) {
  std::set<std::string_view> names;
  for (const CopyClass kind : CopyClass::all()) names.insert(kind.name());
  BOOST_TEST(names.size() == CopyClass::all().size());
  BOOST_TEST(CopyClass(1, false).name() == "runs to 1 KiB");
  BOOST_TEST(CopyClass(1024, false).name() == "runs to 1 KiB");
  BOOST_TEST(CopyClass(1025, true).name() == "runs to 16 KiB, digested");
  BOOST_TEST(CopyClass(16384, false).name() == "runs to 16 KiB");
  BOOST_TEST(CopyClass(16385, false).name() == "longer runs");
}

BOOST_AUTO_TEST_CASE(a_small_copy_does_not_measure) {
  KernelChoice choice(made_up);
  const auto source = numbered_bytes(slice);
  std::vector<std::byte> target(slice);
  copied_by_second = 0;
  for (int i = 0; i < 20 * samples[0]; ++i) copy(choice, target.data(), source.data(), slice - 1);
  BOOST_TEST(copied_by_second == 0u);
  BOOST_TEST(choice.made(long_runs) == nullptr);
  BOOST_TEST(same_bytes(std::span(target).first(slice - 1), std::span(source).first(slice - 1)));
}

BOOST_AUTO_TEST_CASE(slices_of_a_large_copy_try_each_kernel) {
  KernelChoice choice(made_up);
  // More slices than samples needed: a sample with a page fault does not count.
  const auto source = numbered_bytes(slice * in_all * 2 + 4321);
  std::vector<std::byte> target(source.size());
  copied_by_first = copied_by_second = 0;
  copy(choice, target.data(), source.data(), source.size());
  BOOST_TEST(same_bytes(target, source));
  BOOST_REQUIRE(choice.made(long_runs) != nullptr);
  BOOST_TEST(copied_by_first >= (slice - 64) * samples[0]);
  BOOST_TEST(copied_by_second >= 2 * (slice - 64) * samples[0]);
}

BOOST_AUTO_TEST_CASE(a_slice_that_touches_pages_first_is_no_sample) {
  KernelChoice choice(made_up);
  const std::size_t size = slice * in_all * 2;
  const auto source = numbered_bytes(size);
  void* pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(pages != MAP_FAILED);
  ::madvise(pages, size, MADV_NOHUGEPAGE);  // otherwise some slices would access no new page
  auto* const target = static_cast<std::byte*>(pages);
  copy(choice, target, source.data(), size);
  BOOST_TEST(choice.made(long_runs) == nullptr);
  BOOST_TEST(same_bytes(source, std::span(target, size)));
  copy(choice, target, source.data(), size);
  BOOST_TEST(choice.made(long_runs) != nullptr);
  ::munmap(pages, size);
}

BOOST_AUTO_TEST_CASE(several_threads_choose_together_and_copy_every_byte) {
  KernelChoice choice(memory::copy_kernels());
  constexpr std::size_t threads = 4;
  constexpr std::size_t rounds = 12;
  constexpr std::size_t max_rounds = 1000;
  const auto source = numbered_bytes(4 * slice + 12345);
  std::atomic<int> wrong = 0;
  std::array<const CopyKernel*, threads> chosen{};
  {
    std::vector<std::jthread> copiers;
    for (std::size_t thread = 0; thread < threads; ++thread) {
      copiers.emplace_back([&, thread] {
        std::vector<std::byte> target(source.size());
        for (std::size_t round = 0; round < max_rounds; ++round) {
          if (round >= rounds && choice.made(long_runs) != nullptr) break;
          std::fill(target.begin(), target.end(), std::byte{0});
          copy(choice, target.data() + thread, source.data(), source.size() - thread);
          if (!same_bytes(std::span(target).subspan(thread), std::span(source).first(source.size() - thread))) ++wrong;
        }
        chosen[thread] = choice.made(long_runs);
      });
    }
  }
  BOOST_TEST(wrong == 0);
  BOOST_REQUIRE(choice.made(long_runs) != nullptr);
  for (const CopyKernel* kernel : chosen) BOOST_TEST(kernel == choice.made(long_runs));
  BOOST_TEST(choice.made(long_runs)->has_feature());
}

BOOST_AUTO_TEST_SUITE_END()
