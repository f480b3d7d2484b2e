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

/// A reader's request as seen by the source's halves of the methods. The publisher implements it: only the publisher
/// knows the reader, and whether the requested memory may still be read.
/// Threads: the session's thread only, destruction included.
class ServedRequest {
 public:
  virtual ~ServedRequest() = default;
  /// Identifies the reader; unique among readers.
  [[nodiscard]] virtual std::uint64_t reader() const = 0;
  [[nodiscard]] virtual std::uint64_t number() const = 0;
  /// The reader's current endpoint; null if it has gone.
  [[nodiscard]] virtual transport::Endpoint* endpoint() const = 0;

  /// Identifies the publication that is read; for comparison only.
  [[nodiscard]] virtual const void* publication() const = 0;
  /// Errors: throws Error if it may not be read any more.
  virtual void check_readable() const = 0;
  /// The publication's memory is in use from begin_reading() until as many end_reading() calls. The last one may end
  /// the publication.
  virtual void begin_reading() = 0;
  virtual void end_reading() = 0;

  /// Answers a request that cannot be served.
  virtual void fail(const Error& error) = 0;
};

/// Runs code that serves a request and has no caller to catch its errors: an error becomes the answer.
template <typename Body>
void answering(ServedRequest& request, Body body) {
  try {
    body();
  } catch (const Error& error) {
    request.fail(error);
  } catch (const std::exception& error) {  // out of memory
    request.fail(Error(ErrorCode::out_of_resources, error.what()));
  }
}

/// One box of a request, located in local memory.
struct SourceBox {
  Box box;
  PlacedBox placed;
  const std::byte* base = nullptr;
  ByteCount item_bytes = 0;
  int device = memory::on_host;

  [[nodiscard]] ByteCount bytes() const { return static_cast<ByteCount>(box.volume()) * item_bytes; }
};

}  // namespace shardwire::move
