// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/costs.hpp"

namespace shardwire::move {

/// The size of a slot: what a network of this latency and bandwidth needs to run at full speed with a few of them in
/// flight, within bounds; of the transports that carry messages between hosts, the one that needs most.
ByteCount slot_bytes_for(const CostModel& costs);

/// Requests of `unit_bytes` each that one peer is asked for at a time: what the way holds in a round trip, and one more for
/// each of the stages that work side by side. More only lengthens the queue at the source.
int requests_in_flight(const WayCost& cost, ByteCount unit_bytes, int stages);

/// The same for the ways that ask for messages; of the transports that slot_bytes_for() looks at, the one that needs most.
struct Depths {
  int packed = 1;
  int straight = 1;
  int gathered = 1;  ///< straight, as lists over tcp
};
Depths depths_for(const CostModel& costs, ByteCount slot_bytes, ByteCount message_bytes);

}  // namespace shardwire::move
