// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/costs_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace shardwire::perf {

namespace {

using Three = std::array<double, 3>;  // latency, seconds per run, seconds per byte

Three terms_of(const CostSample& sample) {
  return {1, static_cast<double>(sample.runs), static_cast<double>(sample.bytes)};
}

// Least squares over the parts that `used` selects, with the others 0; empty if the samples do not determine them.
std::optional<Three> solve(std::span<const CostSample> samples, const std::array<bool, 3>& used) {
  std::array<std::array<double, 4>, 3> rows{};  // normal equations, right-hand side last
  for (const CostSample& sample : samples) {
    Three terms = terms_of(sample);
    for (double& term : terms) term /= sample.seconds;
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) rows[i][j] += terms[i] * terms[j];
      rows[i][3] += terms[i];
    }
  }
  // Scaled to ones on the diagonal, since bytes and seconds differ by many powers of ten.
  Three scale{};
  for (std::size_t i = 0; i < 3; ++i)
    scale[i] = 1 / std::sqrt(std::max(rows[i][i], std::numeric_limits<double>::min()));
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) rows[i][j] *= scale[i] * scale[j];
    rows[i][3] *= scale[i];
    if (used[i]) continue;
    for (std::size_t j = 0; j < 3; ++j) rows[i][j] = rows[j][i] = 0;
    rows[i] = {};
    rows[i][i] = 1;
  }
  for (std::size_t column = 0; column < 3; ++column) {
    std::size_t pivot = column;
    for (std::size_t i = column; i < 3; ++i) {
      if (std::abs(rows[i][column]) > std::abs(rows[pivot][column])) pivot = i;
    }
    if (std::abs(rows[pivot][column]) < 1e-9) return std::nullopt;
    std::swap(rows[column], rows[pivot]);
    for (std::size_t i = 0; i < 3; ++i) {
      if (i == column) continue;
      const double factor = rows[i][column] / rows[column][column];
      for (std::size_t j = 0; j < 4; ++j) rows[i][j] -= factor * rows[column][j];
    }
  }
  Three out{};
  for (std::size_t i = 0; i < 3; ++i) out[i] = rows[i][3] / rows[i][i] * scale[i];
  return out;
}

double error_of(std::span<const CostSample> samples, const Three& parts) {
  double sum = 0;
  for (const CostSample& sample : samples) {
    const Three terms = terms_of(sample);
    double predicted = 0;
    for (std::size_t i = 0; i < 3; ++i) predicted += terms[i] * parts[i];
    const double off = predicted / sample.seconds - 1;
    sum += off * off;
  }
  return sum;
}

}  // namespace

MethodCost fit_cost(std::span<const CostSample> samples) {
  // With three parts, trying every subset of nonzero parts is exact. Bytes always have a cost.
  Three best{};
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [latency, runs] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    const auto parts = solve(samples, {latency, runs, true});
    if (!parts || (*parts)[0] < 0 || (*parts)[1] < 0 || (*parts)[2] <= 0) continue;
    const double error = error_of(samples, *parts);
    if (error >= least) continue;
    least = error;
    best = *parts;
  }
  return {best[0], best[1], 1 / best[2]};
}

}  // namespace shardwire::perf
