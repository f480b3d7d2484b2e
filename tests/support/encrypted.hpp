// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "control/tls.hpp"

namespace shardwire::test {

/// The encryption of the two ends of a connection, after their handshake. Errors: throws if this build has none.
inline std::array<std::unique_ptr<support::Encryption>, 2> encrypted_ends() {
  std::string why_not;
  const TlsModule* const tls = load_tls(why_not);
  if (tls == nullptr) throw std::runtime_error(why_not);
  const Bytes key(32, std::byte{9});
  std::array<std::unique_ptr<support::Encryption>, 2> ends{
      tls->begin(TlsModule::Side::initiator, key, tls_records_per_key),
      tls->begin(TlsModule::Side::acceptor, key, tls_records_per_key)};
  for (std::size_t from = 0;; from = 1 - from) {
    Bytes said;
    ends[from]->output(said);
    if (said.empty()) return ends;
    Bytes nothing;
    ends[1 - from]->receive(said, nothing);
  }
}

}  // namespace shardwire::test
