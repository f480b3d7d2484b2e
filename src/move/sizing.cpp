// SPDX-License-Identifier: Apache-2.0
#include "move/sizing.hpp"
#include "move/tuning.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace shardwire::move {

namespace {

// The transports that carry messages to other hosts. The largest demand among them does not harm the others.
constexpr const char* message_transports[] = {"tcp", "ucx", "libfabric"};

}  // namespace

ByteCount slot_bytes_for(const CostModel& costs) {
  // Eight round trips' worth: with some slots in flight the pipe stays full, and packing overlaps with sending.
  constexpr ByteCount least = 256u << 10;
  constexpr ByteCount most = 4u << 20;
  double bytes = least;
  for (const char* transport : message_transports) {
    const MethodCost cost = costs.at(transport, MemoryKind::host, Method::packed);
    bytes = std::max(bytes, 8 * cost.latency_seconds * cost.bytes_per_second);
  }
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
  for (const char* transport : message_transports) {
    const auto in_flight = [&](Method method, ByteCount unit_bytes, int stages) {
      return requests_in_flight(costs.at(transport, MemoryKind::host, method), unit_bytes, stages);
    };
    depths.packed = std::max(depths.packed, in_flight(Method::packed, slot_bytes, packed_stages));
    depths.zcopy = std::max(depths.zcopy, in_flight(Method::zcopy, message_bytes, zcopy_stages));
  }
  depths.gathered = requests_in_flight(costs.at("tcp", MemoryKind::host, Method::zcopy),
                                       costs.tuning().tcp.request_bytes, zcopy_stages);
  return depths;
}

}  // namespace shardwire::move
