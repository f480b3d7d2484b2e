// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control/connection.hpp"
#include "memory/copy_queue.hpp"
#include "move/packed_source.hpp"
#include "move/source_digests.hpp"
#include "move/zcopy_source.hpp"
#include "serve/leases.hpp"
#include "serve/publications.hpp"
#include "serve/readers.hpp"
#include "serve/served_read.hpp"

namespace shardwire {

/// Answers readers: manifests, values, leases, handles of memory, payloads and digests. Checks every request against
/// the publication before use.
/// Threads: loop thread only.
class Serving {
 public:
  /// Limits of the memory that packed payloads take.
  struct Staging {
    ByteCount budget_bytes = 0;
    ByteCount slot_bytes = 0;
  };
  Serving(Publications& publications, Leases& leases, const Fabrics& fabrics, AttachedSockets& sockets,
          memory::CopyQueue& copies, Staging staging, Readers::Own own);

  /// Serves a reader's request; ignores other messages. Errors: throws Error for a refused request; the caller sends it
  /// as the answer.
  void serve(Connection& reader, const wire::Message& message);
  void reader_closed(std::uint64_t connection);
  /// Disconnects the readers to which bytes of a withdrawn publication are under way.
  void abort_reads(const detail::PublicationState& publication);

  /// Starts no further copies. Sends in progress continue.
  void stop_packing() { packed_.stop(); }
  [[nodiscard]] const move::StagingPool& staging() const { return packed_.pool(); }

 private:
  void serve_one(Connection& reader, const wire::ManifestRequest& request);
  void serve_one(Connection& reader, const wire::ValuesRequest& request);
  void serve_one(Connection& reader, const wire::Lease& request);
  void serve_one(Connection& reader, const wire::Release& request);
  void serve_one(Connection& reader, const wire::Confirm& request);
  void serve_one(Connection& reader, const wire::Bind& request);
  void serve_one(Connection& reader, const wire::PackRequest& request);
  void serve_one(Connection& reader, const wire::DigestRequest& request);
  void serve_one(Connection& reader, const wire::BlockRequest& request);
  template <typename Other>
  void serve_one(Connection&, const Other&) {}
  /// Runs `then` if the blocks that hold these parts are still those that were published; at once if nothing is known of them.
  void check_blocks(const std::shared_ptr<ServedRead>& read, const Lease* lease,
                    const std::vector<wire::RequestedBox>& parts, std::function<void()> then);
  std::shared_ptr<ServedRead> make_read(Connection& reader, std::uint64_t number, std::size_t parts);

  Publications& publications_;
  Leases& leases_;
  const Fabrics& fabrics_;
  move::SourceDigests digests_;
  move::ZcopySource zcopy_;
  move::PackedSource packed_;
  Readers readers_;  // their endpoints end first, and with them all sends
};

}  // namespace shardwire
