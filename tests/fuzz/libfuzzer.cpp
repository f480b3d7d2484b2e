// SPDX-License-Identifier: Apache-2.0
// The entry of libFuzzer to one target, FUZZ_TARGET. An exception that leaves it ends the process, which libFuzzer reports.
#include <cstdio>
#include <exception>
#include <span>

#include "fuzz/targets.hpp"
#include "transport/transport.hpp"

// costs.cpp asks each transport for its built-in costs. The list of transports would need all of them.
namespace shardwire::transport {
std::span<const Transport> registered() {
  return {};
}
}  // namespace shardwire::transport

// libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  try {
    shardwire::fuzz::FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::terminate();
  }
  return 0;
}
