// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/connection.hpp"
#include "move/served_request.hpp"
#include "serve/leases.hpp"
#include "serve/publications.hpp"
#include "serve/readers.hpp"

namespace shardwire {

/// A reader's request for bytes or digests of a publication, until it is answered. The reader reads under a lease, or
/// while the publication is live.
/// Threads: loop thread only.
class ServedRead final : public move::ServedRequest {
 public:
  /// Errors: throws Error{out_of_resources} if the reader has too many requests.
  ServedRead(Publications& publications, Leases& leases, Readers& readers, Connection& reader, std::uint64_t number,
             std::size_t parts);

  /// Call one of the two first. Errors: throws Error if reading is not permitted.
  const Lease* read_under(std::uint64_t lease);
  void read_while_live(const std::string& name, std::uint64_t generation);
  /// Locates the parts in the publication's memory.
  /// Errors: throws Error{invalid_argument} for parts that are not held here, or not under `lease` if it is not null;
  ///         Error{withdrawn} if their memory was freed.
  [[nodiscard]] std::vector<move::SourceBox> locate(const Lease* lease, const std::vector<wire::RequestedBox>& parts);

  [[nodiscard]] std::uint64_t reader() const override { return connection_->id(); }
  [[nodiscard]] std::uint64_t number() const override { return number_; }
  [[nodiscard]] transport::Endpoint* endpoint() const override { return readers_.messages(reader()); }
  [[nodiscard]] const void* publication() const override { return publication_.get(); }
  [[nodiscard]] const std::optional<PublishedDigests>& digests() const { return publication_->digests; }
  /// Answers that these blocks differ from what was published. Requires: there are some.
  void refuse_corrupt(std::vector<wire::RequestedBox> blocks);
  void check_readable() const override;
  void begin_reading() override { leases_.begin_read(publication_); }
  void end_reading() override { leases_.end_read(publication_); }
  void fail(const Error& error) override;

 private:
  [[nodiscard]] move::SourceBox locate(const wire::RequestedBox& part);

  Publications& publications_;
  Leases& leases_;
  Readers& readers_;
  std::shared_ptr<Connection> connection_;  // owners: the session's table and requests
  std::uint64_t number_;
  std::uint64_t lease_ = 0;                                // 0: while the generation is live
  std::shared_ptr<detail::PublicationState> publication_;  // owners: see Publication handle
  Charge charge_;
};

}  // namespace shardwire
