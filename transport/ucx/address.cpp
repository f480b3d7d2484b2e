// SPDX-License-Identifier: Apache-2.0
#include "transport/bytes.hpp"
#include "transport/ucx/endpoint.hpp"

namespace shardwire::transport::ucx {
namespace {

constexpr std::uint64_t address_magic = 0x72646461786375ULL;

struct Record {
  std::uint64_t magic = address_magic;
  std::uint64_t fabric = 0;
  std::uint32_t worker_bytes = 0;
  std::uint32_t serves_reads = 0;
};

}  // namespace

Bytes encode(const Address& address) {
  Bytes out;
  append(out, Record{.fabric = address.fabric,
                     .worker_bytes = static_cast<std::uint32_t>(address.worker.size()),
                     .serves_reads = address.serves_reads ? 1U : 0U});
  append_bytes(out, address.worker);
  seal(out);
  return out;
}

// The format of the worker address is internal to UCX, and UCX does not validate it: a malformed address with a correct
// checksum ends the process. So addresses are accepted only from authenticated members (README).
Address decode_address(ByteView bytes) {
  auto body = unseal(bytes);
  const auto record = body ? take<Record>(*body) : std::nullopt;
  if (!record || record->magic != address_magic || body->empty() || body->size() != record->worker_bytes) {
    throw Error(ErrorCode::transport_failed, "not an address of the ucx transport, or a garbled one");
  }
  return {
      .fabric = record->fabric, .worker = Bytes(body->begin(), body->end()), .serves_reads = record->serves_reads != 0};
}

}  // namespace shardwire::transport::ucx
