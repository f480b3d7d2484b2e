// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <boost/test/tree/decorator.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "memory/kernels.hpp"

namespace shardwire::test {

/// Kernels that need the processor feature `feature`; empty: kernels that need none.
inline std::vector<const memory::CopyKernel*> kernels_with(std::string_view feature) {
  std::vector<const memory::CopyKernel*> kernels;
  for (const memory::CopyKernel& kernel : memory::copy_kernels()) {
    if (kernel.feature == feature) kernels.push_back(&kernel);
  }
  return kernels;
}

/// Precondition of a test of these kernels.
inline auto can_run(std::string_view feature) {
  return [feature](boost::unit_test::test_unit_id) {
    const auto kernels = kernels_with(feature);
    boost::test_tools::assertion_result result(!kernels.empty() && kernels.front()->has_feature());
    if (!result) result.message() << "this processor lacks " << feature;
    return result;
  };
}

inline std::vector<std::byte> numbered_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131) ^ (i >> 8));
  return bytes;
}

}  // namespace shardwire::test
