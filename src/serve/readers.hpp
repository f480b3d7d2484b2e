// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "move/zcopy_source.hpp"
#include "paths/fabrics.hpp"
#include "peers/payload_sockets.hpp"
#include "serve/reader_load.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// The readers of this member, by connection: the load of each, and the endpoints over which it receives payloads.
/// Threads: loop thread only.
class Readers {
 public:
  struct Own {
    std::string host;              ///< in this member's hello
    bool encrypt_payload = false;  ///< see Identity
  };
  /// `sends`: the sends over these endpoints; it aborts them.
  Readers(const Fabrics& fabrics, AttachedSockets& sockets, move::ZcopySource& sends, Own own)
      : fabrics_(fabrics), sockets_(sockets), sends_(sends), own_(std::move(own)) {}

  /// Charges `amount` to the reader. Errors: throws Error{out_of_resources} beyond the bounds of one reader.
  Charge charge(std::uint64_t reader, const ReaderLoad::Amount& amount);
  /// Errors: as charge(), which a lease or request of this size may still pass later.
  void check(std::uint64_t reader, const ReaderLoad::Amount& amount);

  /// Connects the fabrics that the reader requests, unless they are connected. Returns their indexes, in order.
  /// Errors: throws Error{unsupported} for a fabric that is not open here,
  ///         Error{peer_lost} if the reader's sockets for it have ended or are missing.
  std::vector<std::size_t> connect(std::uint64_t reader, const wire::Hello& peer,
                                   const std::vector<wire::FabricHandle>& wanted);
  /// The best endpoint that sends messages; null: none is connected.
  [[nodiscard]] transport::Endpoint* messages(std::uint64_t reader) const;
  /// When it returns, no send to the reader is in progress. With `why`, requests being served are answered with it.
  void disconnect(std::uint64_t reader, const Error* why = nullptr);
  /// The reader has gone: disconnects it. Charges for it may be released later.
  void remove(std::uint64_t reader);

 private:
  struct Channel {
    std::uint64_t token = 0;  // of its sockets; 0: none
    std::unique_ptr<transport::Endpoint> endpoint;
  };
  struct Reader {
    std::map<std::size_t, Channel> channels;  // by fabric
    transport::Endpoint* messages = nullptr;  // the best one that sends messages
  };
  const std::shared_ptr<ReaderLoad>& load_of(std::uint64_t reader);
  void connect(std::uint64_t reader, const wire::Hello& peer, std::size_t fabric, const wire::FabricHandle& wanted);
  /// Whether the endpoint to the reader is that of `wanted`. Aborts one that has to be replaced.
  bool is_connected(std::uint64_t reader, std::size_t fabric, const wire::FabricHandle& wanted);
  void choose_messages(Reader& reader) const;

  const Fabrics& fabrics_;
  AttachedSockets& sockets_;
  move::ZcopySource& sends_;
  Own own_;
  std::map<std::uint64_t, std::shared_ptr<ReaderLoad>> loads_;  // owners: see Charge
  std::map<std::uint64_t, Reader> connected_;                   // once bound
};

}  // namespace shardwire
