// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "wire/capnp_input.hpp"
#include "wire/messages.hpp"

// Runs of members as bytes: a struct of 16 bytes for each would make a roster of single members several times as large.
// A run starts with a varint: the members omitted since the run before, times 4, plus 1 if a varint of count - 2
// follows, plus 2 if group and shift change. In that case the group follows as a varint, and for groups other than 0
// the difference of (layout rank - first) from that of the run before, as a zigzag varint. Varints are little-endian, 7
// bits per byte. A member number that follows in the same group with the same shift takes one to three bytes.
namespace shardwire::wire {

/// Errors: throws Error{invalid_argument} for runs that are not ascending and disjoint.
Bytes encode_runs(std::span<const MemberRun> runs);
/// Errors: in.reject() for anything that encode_runs does not write, and for members or layout ranks beyond max_rank.
std::vector<MemberRun> decode_runs(std::span<const std::byte> bytes, const Input& in);

}  // namespace shardwire::wire
