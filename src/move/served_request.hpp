// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "memory/device.hpp"
#include "shardwire/error.hpp"
#include "shardwire/layout.hpp"
#include "transport/transport.hpp"
#include "wire/messages.hpp"

namespace shardwire::move {

/// A reader's request as the source's halves of the ways see it. Whoever publishes implements it: it alone knows who asks,
/// and whether what is asked for may still be read.
/// Threads: the session's thread only, destruction included.
class ServedRequest {
 public:
  virtual ~ServedRequest() = default;
  /// Who asks; never the same for two readers.
  [[nodiscard]] virtual std::uint64_t reader() const = 0;
  [[nodiscard]] virtual std::uint64_t number() const = 0;
  /// What the reader is reached through now; null when it has gone.
  [[nodiscard]] virtual transport::Endpoint* endpoint() const = 0;

  /// Which publication is read; for comparison only.
  [[nodiscard]] virtual const void* publication() const = 0;
  /// Errors: throws Error when it may not be read any more.
  virtual void check_readable() const = 0;
  /// The publication's memory is in use from begin_reading() until as many end_reading(). The last may end the publication.
  virtual void begin_reading() = 0;
  virtual void end_reading() = 0;

  /// The answer to a request that cannot be served.
  virtual void fail(const Error& error) = 0;
};

/// Runs what serves a request, where nobody would catch what it throws: that is the answer.
template <typename Body>
void answering(ServedRequest& request, Body body) {
  try {
    body();
  } catch (const Error& error) {
    request.fail(error);
  } catch (const std::exception& error) {  // no memory
    request.fail(Error(ErrorCode::out_of_resources, error.what()));
  }
}

/// One box of a request, found in local memory.
struct SourceBox {
  Box box;
  PlacedBox placed;
  const std::byte* base = nullptr;
  ByteCount item_bytes = 0;
  int device = memory::on_host;

  [[nodiscard]] ByteCount bytes() const { return static_cast<ByteCount>(box.volume()) * item_bytes; }
};

}  // namespace shardwire::move
