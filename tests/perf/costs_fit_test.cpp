// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/costs_fit.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(costs_fit)

namespace {

using namespace shardwire;
using namespace shardwire::perf;

constexpr double tolerance = 1e-6;  // percent, as Boost counts it: the samples are exact

std::vector<CostSample> samples_of(const MethodCost& cost) {
  std::vector<CostSample> samples;
  for (const ByteCount run : {256u, 4096u, 65536u, 1u << 20}) {
    for (const ByteCount runs : {1u, 16u, 4096u}) samples.push_back({run * runs, runs, cost.seconds(run * runs, runs)});
  }
  return samples;
}

}  // namespace

BOOST_AUTO_TEST_CASE(finds_the_line_that_samples_lie_on) {
  const MethodCost cost{50e-6, 30e-9, 12e9};
  const MethodCost found = fit_cost(samples_of(cost));
  BOOST_CHECK_CLOSE(found.latency_seconds, cost.latency_seconds, tolerance);
  BOOST_CHECK_CLOSE(found.run_seconds, cost.run_seconds, tolerance);
  BOOST_CHECK_CLOSE(found.bytes_per_second, cost.bytes_per_second, tolerance);
}

BOOST_AUTO_TEST_CASE(leaves_a_part_out_rather_than_make_it_negative) {
  // Long runs are slower than short ones: no cost of a run explains that.
  const std::vector<CostSample> samples{{1000, 1000, 1e-6}, {10000, 100, 20e-6}, {100000, 1, 300e-6}};
  const MethodCost found = fit_cost(samples);
  BOOST_TEST(found.latency_seconds >= 0);
  BOOST_TEST(found.run_seconds >= 0);
  BOOST_TEST(found.bytes_per_second > 0);
}

BOOST_AUTO_TEST_CASE(a_single_sample_is_its_bandwidth) {
  const std::vector<CostSample> samples{{1000, 1, 1e-6}};
  const MethodCost found = fit_cost(samples);
  BOOST_CHECK_CLOSE(found.seconds(1000, 1), 1e-6, tolerance);
}

BOOST_AUTO_TEST_CASE(random_lines_are_found_through_a_little_noise) {
  std::mt19937_64 random(test_seed());
  std::uniform_real_distribution<double> power(-1, 1);
  std::uniform_real_distribution<double> noise(0.99, 1.01);
  for (int round = 0; round < 100; ++round) {
    const auto near = [&](double value) { return value * std::pow(10, power(random)); };
    const MethodCost cost{near(50e-6), near(100e-9), near(5e9)};
    std::vector<CostSample> samples = samples_of(cost);
    for (CostSample& sample : samples) sample.seconds *= noise(random);
    const MethodCost found = fit_cost(samples);
    for (const CostSample& sample : samples) {
      BOOST_CHECK_CLOSE(found.seconds(sample.bytes, sample.runs), cost.seconds(sample.bytes, sample.runs), 5);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
