// SPDX-License-Identifier: Apache-2.0
#include "move/sizing.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "move/tuning.hpp"
#include "transport/transport.hpp"

namespace shardwire::move {

namespace {

/// Calls visit(name) for each transport that reaches other hosts. The largest demand among them does not harm the others.
template <typename Visit>
void each_network(Visit visit) {
  for (const transport::Transport& one : transport::registered()) {
    if (one.reach == Reach::network) visit(one.name);
  }
}

}  // namespace

ByteCount slot_bytes_for(const CostModel& costs) {
  // Eight round trips' worth: with some slots in flight the pipe stays full, and packing overlaps with sending.
  constexpr ByteCount least = 256u << 10;
  constexpr ByteCount most = 4u << 20;
  double bytes = least;
  each_network([&](std::string_view transport) {
    const MethodCost cost = costs.at(transport, MemoryKind::host, Method::packed);
    bytes = std::max(bytes, 8 * cost.latency_seconds * cost.bytes_per_second);
  });
  return std::bit_ceil(static_cast<ByteCount>(std::min(bytes, double{most})));
}

int requests_in_flight(const MethodCost& cost, ByteCount unit_bytes, int stages) {
  constexpr double most = 16;
  const double on_the_way = std::ceil(cost.latency_seconds * cost.bytes_per_second / static_cast<double>(unit_bytes));
  return static_cast<int>(std::clamp(on_the_way + stages, 1.0, most));
}

Depths depths_for(const CostModel& costs, ByteCount slot_bytes, ByteCount message_bytes) {
  constexpr int packed_stages = 3;  // one is packed, one travels, one is unpacked
  constexpr int zcopy_stages = 1;
  Depths depths;
  each_network([&](std::string_view transport) {
    const auto in_flight = [&](Method method, ByteCount unit_bytes, int stages) {
      return requests_in_flight(costs.at(transport, MemoryKind::host, method), unit_bytes, stages);
    };
    depths.packed = std::max(depths.packed, in_flight(Method::packed, slot_bytes, packed_stages));
    depths.zcopy = std::max(depths.zcopy, in_flight(Method::zcopy, message_bytes, zcopy_stages));
  });
  depths.gathered = requests_in_flight(costs.at("tcp", MemoryKind::host, Method::zcopy),
                                       costs.tuning().tcp.request_bytes, zcopy_stages);
  return depths;
}

}  // namespace shardwire::move
