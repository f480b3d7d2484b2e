// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "memory/copier.hpp"
#include "move/staging.hpp"
#include "session/control/connection.hpp"
#include "session/control/payload_sockets.hpp"
#include "session/fabrics.hpp"
#include "session/source/generation_words.hpp"
#include "session/source/publication.hpp"
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
  Publisher(const Fabrics& fabrics, AttachedSockets& sockets, memory::Copier& copier, Staging staging,
            std::string host);
  /// Requires: the copier has ended. Whoever waits in retire() is let go.
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

  [[nodiscard]] ByteCount staging_peak_bytes() const { return pool_.peak_bytes(); }
  [[nodiscard]] ByteCount staging_budget_bytes() const { return pool_.budget_bytes(); }

 private:
  using Publication = detail::PublicationState;
  struct Sending {                             // messages under way out of a publication's own memory, for one request
    std::shared_ptr<Publication> publication;  // owners: see Publication handle
    std::shared_ptr<Connection> connection;    // owners: the session's table and requests
    int messages = 0;
    bool failed = false;  // and the reader was told
  };
  struct Channel {
    std::uint64_t token = 0;  // of its sockets; 0: it has none
    std::unique_ptr<transport::Endpoint> endpoint;
  };
  struct Reader {
    std::map<std::size_t, Channel> channels;    // by fabric
    transport::Endpoint* messages = nullptr;    // the best of them that sends
    std::map<std::uint64_t, Sending> straight;  // by request
    // Slots that hold what it has asked for. Owners: this and the slots' jobs.
    std::shared_ptr<std::size_t> slots = std::make_shared<std::size_t>(0);
  };
  struct Source {  // one box of a request, found in local memory
    Box box;
    PlacedBox placed;
    const std::byte* base = nullptr;
    ByteCount item_bytes = 0;
  };
  class Charge;
  /// Digests that one request asks for.
  struct Digesting {
    std::shared_ptr<Connection> reader;  // owners: the session's table and this request
    std::uint64_t number = 0;
    std::uint64_t lease = 0;
    std::vector<Source> sources;
    ByteCount bytes = 0;
    std::shared_ptr<Charge> charge;  // owners: see Charge
    std::function<void(std::vector<wire::BoxDigest>)> done;
    std::vector<wire::BoxDigest> digests{};
    std::shared_ptr<void> slot{};  // counts it in the reader's load
  };
  /// What one reader has this member keep. Owners: the table of readers and charges.
  struct Load {
    std::size_t leases = 0;
    std::size_t tensors = 0;          // of its leases
    std::size_t boxes = 0;            // likewise
    std::size_t requests = 0;         // not answered yet
    std::size_t parts = 0;            // of these
    std::size_t digesting = 0;        // of the requests: have their digests taken by the copier
    std::deque<Digesting> digests{};  // wait for these
  };
  /// One request against the load of its reader. Owners: the request and the job that serves it.
  class Charge {
   public:
    /// Errors: throws Error{out_of_resources} when it is too much.
    Charge(std::shared_ptr<Load> load, std::size_t parts);
    ~Charge();
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

   private:
    std::shared_ptr<Load> load_;
    std::size_t parts_;
  };
  struct Packing {
    std::shared_ptr<Connection> reader;  // owners: the session's table and this request
    std::uint64_t number = 0;
    std::uint64_t lease = 0;  // 0: without
    std::string name;         // without one: the publication's, and the next
    std::uint64_t generation = 0;
    std::vector<Source> sources;
    ByteCount bytes = 0;
    bool digest = false;
    std::shared_ptr<Charge> charge{};  // owners: see Charge
  };
  struct Straight {                      // parts that lie in one piece each, with their digests where these are wanted
    std::shared_ptr<Connection> reader;  // owners: the session's table and this request
    std::uint64_t number = 0;
    std::uint64_t lease = 0;
    std::vector<transport::ConstMemory> parts;
    std::vector<wire::BoxDigest> digests;
    std::shared_ptr<Charge> charge;  // owners: see Charge
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
  void close_channel(Reader& reader, std::size_t fabric);
  /// Null when the reader has gone, or has bound no fabric that sends.
  [[nodiscard]] transport::Endpoint* messages_to(std::uint64_t reader) const;
  /// Its keys over these fabrics; their descriptors are handed over at once, for `request`.
  wire::RegionHandle show(Connection& reader, std::uint64_t request, const detail::RegisteredMemory& memory,
                          std::span<const std::size_t> fabrics);
  static void show(Connection& reader, std::uint64_t request, const transport::Region& region, std::size_t fabric,
                   wire::RegionHandle& handle);
  [[nodiscard]] std::optional<wire::Bound::Word> show_word(Connection& reader, std::uint64_t request,
                                                           const Publication& publication,
                                                           std::span<const std::size_t> fabrics);

  Load& load_of(std::uint64_t reader);
  std::shared_ptr<Charge> charge(std::uint64_t reader, std::size_t parts);
  std::uint64_t add_lease(const std::shared_ptr<Publication>& publication, detail::Lease lease);
  std::shared_ptr<Publication> leased(std::uint64_t lease, std::uint64_t reader, const detail::Lease** found);
  /// What may be read for this request now, and under which lease. Errors: throws Error when nothing may.
  std::shared_ptr<Publication> readable(const Packing& packing, const detail::Lease** found);
  /// `lease`: null where none is needed.
  std::vector<Source> locate(Publication& publication, const detail::Lease* lease,
                             const std::vector<wire::RequestedBox>& parts, ByteCount* bytes);
  void finish_retiring(const std::shared_ptr<Publication>& publication);
  /// Runs `job`, which reads `bytes` of the publication, and then `done`: at once where that is quicker than waking a
  /// worker. Errors: what a job that runs at once throws.
  void submit(const std::shared_ptr<Publication>& publication, ByteCount bytes, memory::Copier::Job job,
              std::function<void()> done);
  /// Packs what waits, as long as there are slots for it. A reader takes no more of them than it leaves to others: one
  /// that hangs holds half of them, a second one half of the rest.
  void pump();
  void pack(Packing packing, move::Slot slot);
  void send_straight(const std::shared_ptr<Publication>& publication, const Packing& packing);
  /// Takes digests of a few requests of a reader at a time: the copies of others are not to wait for all of one's.
  void take_digests(Digesting wanted);
  void digest_next(const std::shared_ptr<Digesting>& wanted);
  void digested(const std::shared_ptr<Digesting>& wanted, std::size_t end);
  void digest_waiting(std::uint64_t reader);
  void post(const std::shared_ptr<Publication>& publication, const Straight& straight);
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
  memory::Copier& copier_;
  std::string host_;
  std::size_t words_fabric_;  // that peers map the words through; as many as there are: none
  std::optional<GenerationWords> words_;
  move::StagingPool pool_;
  std::map<std::string, std::shared_ptr<Publication>> live_;  // owners: see Publication handle
  std::map<std::uint64_t, std::shared_ptr<Publication>> by_lease_;
  std::vector<Retiring> retiring_;
  std::map<std::uint64_t, Reader> readers_;               // by connection, once bound
  std::map<std::uint64_t, std::shared_ptr<Load>> loads_;  // by connection
  std::deque<Packing> queue_;
  std::uint64_t next_lease_ = 1;
};

}  // namespace shardwire
