// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "memory/copy_queue.hpp"
#include "move/packed_source.hpp"
#include "move/source_digests.hpp"
#include "move/straight_source.hpp"
#include "session/control/connection.hpp"
#include "session/control/payload_sockets.hpp"
#include "session/fabrics.hpp"
#include "session/source/generation_words.hpp"
#include "session/source/publication.hpp"
#include "session/source/reader_load.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// The answer to a request that is refused, in codes that the reader knows.
wire::Failure failure_for(const Connection& reader, std::uint64_t request, const Error& error);

/// The source's side: serves manifests, leases, handles, packed payloads and digests to readers, within its own staging
/// budget. Every request is checked against the publication before anything is touched.
/// Threads: loop thread only.
class Publisher {
 public:
  struct Staging {
    ByteCount budget_bytes = 0;
    ByteCount slot_bytes = 0;
  };
  /// `host`: what this member's hello says of its host.
  Publisher(const Fabrics& fabrics, MemoryTable& memory, AttachedSockets& sockets, memory::CopyQueue& copies,
            Staging staging, std::string host);
  /// Requires: the copies have ended. Whoever waits in retire() is let go.
  ~Publisher();

  /// Errors: throws Error{invalid_argument} when a publication of that name is still live.
  void add(std::shared_ptr<detail::PublicationState> publication);
  [[nodiscard]] std::shared_ptr<detail::PublicationState> live(const std::string& name) const;
  /// Withdraws; calls `done` with the members that still hold leases: none, or those left after `timeout`, whose leases are
  /// revoked then. When it is called, nothing here reads the publication's memory any more.
  void retire(const std::shared_ptr<detail::PublicationState>& publication, Loop& loop, Duration timeout,
              std::function<void(std::vector<int>)> done);

  /// `fresh` takes the place of the live publication of its name, which readers that have it leased go on reading; `done`
  /// as in retire(). Errors: throws Error{invalid_argument} when `old` is not live; nothing changes then.
  void replace(const std::shared_ptr<detail::PublicationState>& old, std::shared_ptr<detail::PublicationState> fresh,
               Loop& loop, Duration timeout, std::function<void(std::vector<int>)> done);

  /// A lease of a restore in this process.
  std::uint64_t lease_own(detail::PublicationState& publication);
  /// Whether the bytes were untouched until now.
  bool release(std::uint64_t lease);

  /// Serves a reader's request; anything else is left alone. Errors: throws Error for a request that is refused; the
  /// caller answers with it.
  void serve(Connection& reader, const wire::Message& message);
  void reader_closed(std::uint64_t connection);

  /// The copies end: nothing is given them any more. What is being sent goes on.
  void stop_packing() { packed_.stop(); }

  [[nodiscard]] ByteCount staging_peak_bytes() const { return packed_.pool().peak_bytes(); }
  [[nodiscard]] ByteCount staging_budget_bytes() const { return packed_.pool().budget_bytes(); }

 private:
  using Publication = detail::PublicationState;
  struct Channel {
    std::uint64_t token = 0;  // of its sockets; 0: it has none
    std::unique_ptr<transport::Endpoint> endpoint;
  };
  struct Reader {
    std::map<std::size_t, Channel> channels;  // by fabric
    transport::Endpoint* messages = nullptr;  // the best of them that sends
  };
  /// A request for bytes or digests of a publication.
  class Request final : public move::ServedRequest {
   public:
    /// Errors: throws Error{out_of_resources} when its reader asks for too much.
    Request(Publisher& publisher, Connection& reader, std::uint64_t number, std::size_t parts);
    /// One of the two comes first. Errors: throws Error when it may not be read.
    const detail::Lease* read_under(std::uint64_t lease);
    void read_while_live(const std::string& name, std::uint64_t generation);
    [[nodiscard]] Publication& published() const { return *publication_; }

    [[nodiscard]] std::uint64_t reader() const override;
    [[nodiscard]] std::uint64_t number() const override { return number_; }
    [[nodiscard]] transport::Endpoint* endpoint() const override;
    [[nodiscard]] const void* publication() const override { return publication_.get(); }
    void check_readable() const override;
    void begin_reading() override;
    void end_reading() override;
    void fail(const Error& error) override;

   private:
    Publisher& publisher_;
    std::shared_ptr<Connection> connection_;  // owners: the session's table and requests
    std::uint64_t number_;
    std::uint64_t lease_ = 0;                   // 0: while the generation is live
    std::shared_ptr<Publication> publication_;  // owners: see Publication handle
    Charge charge_;
  };

  void serve_one(Connection& reader, const wire::ManifestRequest& request);
  void serve_one(Connection& reader, const wire::ValuesRequest& request);
  void serve_one(Connection& reader, const wire::Lease& request);
  void serve_one(Connection& reader, const wire::Release& request);
  void serve_one(Connection& reader, const wire::Confirm& request);
  void serve_one(Connection& reader, const wire::Bind& request);
  void serve_one(Connection& reader, const wire::PackRequest& request);
  void serve_one(Connection& reader, const wire::DigestRequest& request);
  template <typename Other>
  void serve_one(Connection&, const Other&) {}
  /// Connects the fabrics that the reader wants to use, those that are not connected yet. Returns their indexes, in order.
  std::vector<std::size_t> connect(Connection& reader, const wire::Bind& request);
  void connect(Connection& reader, std::size_t fabric, const wire::FabricHandle& wanted);
  /// Its keys over these fabrics; their descriptors are handed over at once, for `request`.
  static void show(Connection& reader, std::uint64_t request, const transport::Region& region, std::size_t fabric,
                   wire::RegionHandle& handle);
  static wire::RegionHandle show(Connection& reader, std::uint64_t request, const detail::RegisteredMemory& memory,
                                 std::span<const std::size_t> fabrics);
  [[nodiscard]] std::optional<wire::Bound::Word> show_word(Connection& reader, std::uint64_t request,
                                                           const Publication& publication,
                                                           std::span<const std::size_t> fabrics);

  const std::shared_ptr<ReaderLoad>& load_of(std::uint64_t reader);
  std::uint64_t add_lease(const std::shared_ptr<Publication>& publication, detail::Lease lease);
  std::shared_ptr<Publication> leased(std::uint64_t lease, std::uint64_t reader, const detail::Lease** found);
  /// `lease`: null where none is needed.
  std::vector<move::SourceBox> locate(Publication& publication, const detail::Lease* lease,
                                      const std::vector<wire::RequestedBox>& parts);
  void finish_retiring(const std::shared_ptr<Publication>& publication);
  /// Cuts a reader off: when this returns, nothing is being sent to it. With `why`, its requests are answered so.
  void drop(std::uint64_t reader, const Error* why = nullptr);

  struct Retiring {
    std::shared_ptr<Publication> publication;  // owners: see Publication handle
    std::unique_ptr<Timer> timer;
    std::function<void(std::vector<int>)> done;
    bool expired = false;
  };

  const Fabrics& fabrics_;
  AttachedSockets& sockets_;
  std::string host_;
  std::optional<GenerationWords> words_;  // where peers can map or read memory of ours
  move::SourceDigests digests_;
  move::StraightSource straight_;
  move::PackedSource packed_;
  std::map<std::string, std::shared_ptr<Publication>> live_;  // owners: see Publication handle
  std::map<std::uint64_t, std::shared_ptr<Publication>> by_lease_;
  std::vector<Retiring> retiring_;
  std::map<std::uint64_t, Reader> readers_;                     // by connection, once bound
  std::map<std::uint64_t, std::shared_ptr<ReaderLoad>> loads_;  // by connection; owners: see Charge
  std::uint64_t next_lease_ = 1;
};

}  // namespace shardwire
