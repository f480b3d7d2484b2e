// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/costs.hpp"

namespace shardwire::move {

/// The slot size at which a network of this latency and bandwidth runs at full speed with a few slots in flight, within
/// bounds; the maximum over the transports that carry messages between hosts.
ByteCount slot_bytes_for(const CostModel& costs);

/// Number of requests of `unit_bytes` each to have in flight to one peer: what the path holds in a round trip, and one
/// more for each stage that works in parallel. More only lengthens the queue at the source.
int requests_in_flight(const MethodCost& cost, ByteCount unit_bytes, int stages);

/// The same for the methods that request messages; the maximum over the transports that slot_bytes_for() considers.
struct Depths {
  int packed = 1;
  int zcopy = 1;
  int gathered = 1;  ///< zcopy, as lists over tcp
};
Depths depths_for(const CostModel& costs, ByteCount slot_bytes, ByteCount message_bytes);

}  // namespace shardwire::move
