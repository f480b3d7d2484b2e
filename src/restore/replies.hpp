// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "shardwire/error.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// The expected reply of a source. Errors: throws the error of a wire::Failure, and Error{transport_failed} for another
/// kind of message; both name the source.
template <typename Reply>
Reply& expect(wire::Message& message, Rank source) {
  if (auto* reply = std::get_if<Reply>(&message)) return *reply;
  const std::vector<Rank> ranks{source};
  const std::string name = "source rank " + std::to_string(to_int(source)) + " ";
  if (const auto* failure = std::get_if<wire::Failure>(&message)) {
    throw Error(failure->code, name + "refused: " + failure->message, ranks);
  }
  throw Error(ErrorCode::transport_failed, name + "sent another reply than was asked for", ranks);
}

}  // namespace shardwire::restore
