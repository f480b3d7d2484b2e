// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/row.hpp"

#include <fmt/core.h>
#include <gnu/libc-version.h>
#include <unistd.h>

#include <algorithm>

#include "perf/measure/commit.hpp"
#include "support/processor.hpp"

namespace shardwire::perf {

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

std::string machine() {
  const double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  const std::string model = support::processor_model();
  return fmt::format("{}, {} cores, {:.0f} GiB", model.empty() ? "unknown processor" : model,
                     ::sysconf(_SC_NPROCESSORS_ONLN), bytes / (1 << 30));
}

nlohmann::ordered_json versions() {
#ifdef __clang__
  const std::string compiler = fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  return {{"compiler", compiler}, {"libc", fmt::format("glibc {}", gnu_get_libc_version())}};
}

nlohmann::ordered_json device_json(const std::string& name, double touched_per_second, double peak_per_second) {
  nlohmann::ordered_json out{{"name", name}, {"memory_bytes_per_second", touched_per_second}};
  if (peak_per_second > 0) {
    out["peak_bytes_per_second"] = peak_per_second;
    out["share_of_peak"] = touched_per_second / peak_per_second;
  }
  return out;
}

std::string commit(const std::string& given) {
  return given.empty() ? built_from : given;
}

}  // namespace shardwire::perf
