// SPDX-License-Identifier: Apache-2.0
// Frames of a control connection before its peer has proven the job key. The first byte: 1 the connection began, not the
// peer; 2 the peer stays silent at the end.
#include "fuzz/made_peer.hpp"

namespace shardwire::fuzz {

namespace {

bool proves_the_key(Input bytes, bool initiator) {
  const auto first = take_frame(bytes, wire::max_hello_bytes);
  const auto second = take_frame(bytes, wire::max_hello_bytes);
  if (!first || !second) return false;
  const auto hello = accepted([&] { return wire::decode(*first); });
  const auto proof = accepted([&] { return wire::decode(*second); });
  if (!hello || !proof) return false;
  const auto* const theirs = std::get_if<wire::Hello>(&*hello);
  const auto* const digest = std::get_if<wire::Proof>(&*proof);
  if (theirs == nullptr || digest == nullptr) return false;
  const wire::Hello mine = own_hello();
  return theirs->version == mine.version && theirs->run_id == mine.run_id && theirs->world_size == mine.world_size &&
         *digest == proof_of(*theirs, initiator);
}

}  // namespace

void handshake(Input input) {
  if (input.empty()) return;
  const bool initiator = (input.front() & std::byte{1}) != std::byte{0};
  const bool silent = (input.front() & std::byte{2}) != std::byte{0};
  const Input bytes = input.subspan(1);
  const Allocation allocation;
  const Record record = conversation(bytes, initiator, silent);
  allocation.require_at_most(bytes.size(), 2000, 4u << 20);
  require(record.ready == proves_the_key(bytes, initiator), "the key decides whether a connection becomes ready");
  std::uint64_t length = 0;
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  require(length <= wire::max_hello_bytes || record.closed == ErrorCode::transport_failed,
          "no peer without the key announces a long message");
  for (const wire::Message& sent : record.sent) {
    require(record.ready || std::holds_alternative<wire::Hello>(sent) || std::holds_alternative<wire::Proof>(sent) ||
                std::holds_alternative<wire::Failure>(sent),
            "a peer without the key gets no other messages than those of the handshake");
  }
}

}  // namespace shardwire::fuzz
