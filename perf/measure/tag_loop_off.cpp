// SPDX-License-Identifier: Apache-2.0
// Stands in for tag_loop.cpp in a build without UCX.
#include "perf/measure/tag_loop.hpp"
#include "shardwire/error.hpp"

namespace shardwire::perf {

struct TagLoop::State {};

std::string why_no_tag_loop() {
  return "this build has no UCX";
}

TagLoop::TagLoop() {
  throw Error(ErrorCode::unsupported, why_no_tag_loop());
}
TagLoop::~TagLoop() = default;
std::vector<std::byte> TagLoop::address() const {
  return {};
}
std::size_t TagLoop::connect(std::span<const std::byte> /*peer*/) {
  return 0;
}
void TagLoop::exchange(std::span<const Send> /*sends*/, std::span<std::byte> /*receive*/, const TagStyle& /*style*/) {
}

}  // namespace shardwire::perf
