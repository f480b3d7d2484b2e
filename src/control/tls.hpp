// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "support/encryption.hpp"

// Interface between Connection and the module that loads OpenSSL (support/module.hpp). Only jobs with a key load it.
namespace shardwire {

struct TlsModule {
  enum class Side { initiator, acceptor };
  /// TLS 1.3 with a key that is derived from the job key, and no certificates (RFC 8446, psk_dhe_ke). The initiator's first
  /// output is there at once. Each direction changes its key after so many records (RFC 8446, 5.5: at most 2^24.5 of AES-GCM).
  /// Errors: throws Error{out_of_resources, internal}.
  std::unique_ptr<support::Encryption> (*begin)(Side side, std::span<const std::byte> job_key,
                                                std::uint64_t records_per_key);
};
inline constexpr std::uint64_t tls_records_per_key = std::uint64_t{1} << 22;

/// Null, with the reason, if this build or this machine has no OpenSSL 3.
const TlsModule* load_tls(std::string& why_not);

}  // namespace shardwire
