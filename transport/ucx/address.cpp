// SPDX-License-Identifier: Apache-2.0
#include "transport/bytes.hpp"
#include "transport/ucx/endpoint.hpp"

namespace shardwire::transport::ucx {
namespace {

constexpr std::uint64_t address_magic = 0x72646461786375ULL;

struct Record {
  std::uint64_t magic = address_magic;
  std::uint64_t fabric = 0;
  std::uint64_t host = 0;
  ProcessId process;
  std::uint32_t host_worker_bytes = 0;
  std::uint32_t network_worker_bytes = 0;
  std::uint32_t beacon_key_bytes = 0;
  std::uint32_t reserved = 0;
};

Bytes take_front(ByteView& in, std::size_t size) {
  Bytes out(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(size));
  in = in.subspan(size);
  return out;
}

}  // namespace

Bytes encode(const Address& address) {
  Record record;
  record.fabric = address.fabric;
  record.host = address.host;
  record.process = address.process;
  record.host_worker_bytes = static_cast<std::uint32_t>(address.host_worker.size());
  record.network_worker_bytes = static_cast<std::uint32_t>(address.network_worker.size());
  record.beacon_key_bytes = static_cast<std::uint32_t>(address.beacon_key.size());
  Bytes out;
  append(out, record);
  for (const Bytes* part : {&address.host_worker, &address.network_worker, &address.beacon_key}) {
    append_bytes(out, *part);
  }
  seal(out);
  return out;
}

Address decode_address(ByteView bytes) {
  auto body = unseal(bytes);
  const auto record = body ? take<Record>(*body) : std::nullopt;
  if (!record || record->magic != address_magic ||
      body->size() !=
          std::size_t{record->host_worker_bytes} + record->network_worker_bytes + record->beacon_key_bytes) {
    throw Error(ErrorCode::transport_failed, "not an address of the ucx transport, or a garbled one");
  }
  Address out;
  out.fabric = record->fabric;
  out.host = record->host;
  out.process = record->process;
  out.host_worker = take_front(*body, record->host_worker_bytes);
  out.network_worker = take_front(*body, record->network_worker_bytes);
  out.beacon_key = take_front(*body, record->beacon_key_bytes);
  return out;
}

}  // namespace shardwire::transport::ucx
