// SPDX-License-Identifier: Apache-2.0
#include "shardwire/error.hpp"

namespace shardwire {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::layout_mismatch: return "layout_mismatch";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::out_of_resources: return "out_of_resources";
    case ErrorCode::peer_lost: return "peer_lost";
    case ErrorCode::timed_out: return "timed_out";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::transport_failed: return "transport_failed";
    case ErrorCode::internal: return "internal";
    case ErrorCode::withdrawn: return "withdrawn";
    case ErrorCode::step_mismatch: return "step_mismatch";
    case ErrorCode::corrupt: return "corrupt";
  }
  return "unknown";
}

}  // namespace shardwire
