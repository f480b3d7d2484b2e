// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include "transport/bytes.hpp"
#include "transport/libfabric/endpoint.hpp"

namespace shardwire::transport::libfabric {
namespace {

constexpr std::uint64_t address_magic = 0x726464616966696cULL;

struct Record {
  std::uint64_t magic = address_magic;
  std::uint64_t fabric = 0;
  std::uint32_t format = 0;
  std::uint32_t name_bytes = 0;
};

// The address family that a name of this format begins with, if any.
std::optional<sa_family_t> family_of(std::uint32_t format) {
  switch (format) {
    case FI_SOCKADDR_IN: return sa_family_t{AF_INET};
    case FI_SOCKADDR_IN6: return sa_family_t{AF_INET6};
    default: return std::nullopt;
  }
}

}  // namespace

Bytes encode(const Address& address) {
  Bytes out;
  append(out, Record{.fabric = address.fabric,
                     .format = address.format,
                     .name_bytes = static_cast<std::uint32_t>(address.name.size())});
  append_bytes(out, address.name);
  seal(out);
  return out;
}

// Libfabric takes no length for a name: names of one format and provider have equal length.
Address decode_address(ByteView bytes, const Address& own) {
  auto body = unseal(bytes);
  const auto record = body ? take<Record>(*body) : std::nullopt;
  if (!record || record->magic != address_magic || body->size() != record->name_bytes || record->format != own.format ||
      body->size() != own.name.size()) {
    throw Error(ErrorCode::transport_failed, "not an address of the libfabric transport, or a garbled one");
  }
  Address address{.fabric = record->fabric, .format = record->format, .name = Bytes(body->begin(), body->end())};
  if (const auto family = family_of(record->format); family && take<sa_family_t>(*body) != family) {
    throw Error(ErrorCode::transport_failed, "an address of the libfabric transport with a name of another kind");
  }
  return address;
}

}  // namespace shardwire::transport::libfabric
