// SPDX-License-Identifier: Apache-2.0
#include "move/sizing.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace shardwire::move {

ByteCount slot_bytes_for(const CostModel& costs) {
  // Eight round trips' worth: with some slots in flight the pipe stays full, and packing overlaps with sending.
  const WayCost& cost = costs.at(Reach::network, Way::packed);
  constexpr ByteCount least = 256u << 10;
  constexpr ByteCount most = 4u << 20;
  const double bytes = std::clamp(8 * cost.latency_seconds * cost.bytes_per_second, double{least}, double{most});
  return std::bit_ceil(static_cast<ByteCount>(bytes));
}

int requests_in_flight(const WayCost& cost, ByteCount unit_bytes, int stages) {
  constexpr double most = 16;
  const double on_the_way = std::ceil(cost.latency_seconds * cost.bytes_per_second / static_cast<double>(unit_bytes));
  return static_cast<int>(std::clamp(on_the_way + stages, 1.0, most));
}

Depths depths_for(const CostModel& costs, ByteCount slot_bytes, ByteCount message_bytes) {
  constexpr int packed_stages = 3;  // one is packed, one travels, one is unpacked
  constexpr int straight_stages = 1;
  Depths depths;
  for (const Reach reach : {Reach::host, Reach::network}) {
    depths.packed =
        std::max(depths.packed, requests_in_flight(costs.at(reach, Way::packed), slot_bytes, packed_stages));
    depths.straight =
        std::max(depths.straight, requests_in_flight(costs.at(reach, Way::straight), message_bytes, straight_stages));
  }
  return depths;
}

}  // namespace shardwire::move
