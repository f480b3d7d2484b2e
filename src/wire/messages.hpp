// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "geometry/shared_value.hpp"
#include "shardwire/error.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/value.hpp"
#include "support/digest128.hpp"

// Values exchanged between members, independent of their encoding. encode()/decode() are the only conversion to and
// from bytes.
namespace shardwire::wire {

inline constexpr std::uint32_t protocol_version = 9;
/// Member number of a guest that has not joined yet: member 0 assigns one beyond the job's size.
inline constexpr std::int32_t no_member = -1;
/// Guests that a job has at a time, at most.
inline constexpr std::int32_t max_guests = 65536;
using Digest = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

/// A fabric that a member has open. Two members can use it if both name and domain are equal.
struct FabricOffer {
  std::string name;
  std::string domain;
  bool operator==(const FabricOffer&) const = default;
};

/// First message on a connection, both ways.
struct Hello {
  std::uint32_t version = protocol_version;
  std::vector<std::string> capabilities;  ///< features that only some members of this version have; schema/README.md
  std::int32_t rank = 0;                  ///< member number; no_member: a guest that is to join
  std::int32_t world_size = 0;            ///< 0: a guest that does not know it
  std::uint64_t incarnation = 0;          ///< distinguishes processes that had the same member number
  std::string host;                       ///< equal on one host (boot id)
  Nonce nonce{};
  std::string run_id{};  ///< name of the job; may be empty. Members with different names refuse each other
  std::vector<FabricOffer> fabrics{};
  bool operator==(const Hello&) const = default;
};
/// Keyed digest over both hellos: proves that the sender has the job key. Second message, both ways.
struct Proof {
  Digest digest{};
  bool operator==(const Proof&) const = default;
};

// --- rendezvous: member 0 knows the members and their publications ---
/// How to reach a member. Sent to the rendezvous on joining, and by the rendezvous to members that ask.
struct MemberRecord {
  std::int32_t rank = 0;
  std::uint64_t incarnation = 0;
  std::string host{};
  std::string address{};  ///< numeric
  std::uint16_t port = 0;
  std::string local_path{};  ///< Unix socket for members of the same host, abstract name; may be empty
  std::string domain{};      ///< what fails together; empty: the host
  bool operator==(const MemberRecord&) const = default;
};
/// A member's publication under a name.
struct PublicationRecord {
  std::int32_t member = 0;
  std::uint32_t epoch = 0;       ///< see Joined; not sent with Publish
  std::uint64_t origin = 0;      ///< session in which the state was published, see Joined; 0: this one
  std::int32_t layout_rank = 0;  ///< rank in the layouts of the manifest
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  bool live = true;  ///< false: withdrawn
  Digest manifest{};
  Digest values{};
  std::uint32_t attempt = 0;  ///< of the origin, as far as the publisher knows, see AttemptRaised; 0: this session
  bool operator==(const PublicationRecord&) const = default;
};

struct Join {
  MemberRecord member;
  bool operator==(const Join&) const = default;
};
/// Answer to Join. Incarnations are random and do not compress; an epoch distinguishes the same processes by a small
/// number.
struct Joined {
  std::uint32_t epoch = 0;      ///< number of processes that have had this member number, this one included
  std::int32_t member = 0;      ///< that number
  std::int32_t world_size = 1;  ///< of the job
  std::uint64_t session = 0;    ///< a random number for it
  std::uint32_t attempt = 0;    ///< of the session, as far as member 0 knows
  std::uint64_t age_ns = 0;     ///< of the session, by the clock of member 0
  bool operator==(const Joined&) const = default;
};
/// The attempt of a session orders the sessions of a job for readers: the higher one is newer. A member whose keeper has counted its
/// session tells member 0, which tells all, and these tell their keepers. It never becomes lower. 0: no keeper has counted the
/// session. Keepers count sessions in the order in which they began (KeepJob::began_ns).
struct AttemptRaised {
  std::uint32_t attempt = 0;
  bool operator==(const AttemptRaised&) const = default;
};
/// Announces a publication, or withdraws it if it is not live.
struct Publish {
  std::string publication;
  PublicationRecord record;
  bool operator==(const Publish&) const = default;
};
/// Requests the roster of one name, now and whenever it changes.
struct Watch {
  std::string publication;
  bool operator==(const Watch&) const = default;
};

/// The sender needs no further rosters of a name that it watches. Changes that were sent before may still arrive there.
struct Unwatch {
  std::string publication;
  bool operator==(const Unwatch&) const = default;
};

/// `count` members from `first` on, which belong to one group; member first + i has layout rank `layout_rank` + i.
struct MemberRun {
  std::int32_t first = 0;
  std::int32_t count = 1;
  std::int32_t layout_rank = 0;  ///< 0 for group 0
  std::uint32_t group = 0;       ///< 0: none
  bool operator==(const MemberRun&) const = default;
};
/// The common properties of many members' publications.
struct RosterGroup {
  std::uint32_t number = 0;  ///< not 0; the receiver remembers it until no member belongs to it
  std::uint32_t epoch = 0;
  std::uint64_t origin = 0;
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  Digest manifest{};
  Digest values{};
  std::uint32_t attempt = 0;
  bool operator==(const RosterGroup&) const = default;
};
/// The publications under a name, or the changes since the last roster of that name.
struct Roster {
  std::string publication;
  bool whole = false;  ///< replaces all earlier rosters
  std::vector<RosterGroup> groups;
  std::vector<MemberRun> runs;  ///< ascending, disjoint; sets these members and leaves the others unchanged
  bool operator==(const Roster&) const = default;
};

enum class Presence : std::uint32_t { there, left, lost };
/// Members that left or came back, in the form of Roster::runs: the group is a Presence, the layout rank 0 or the
/// member.
struct MembershipChanges {
  std::vector<MemberRun> runs;
  bool operator==(const MembershipChanges&) const = default;
};

struct Lookup {
  std::vector<std::int32_t> members;  ///< ascending
  bool operator==(const Lookup&) const = default;
};
/// Each requested member is in one of the two lists.
struct Addresses {
  struct Entry {
    std::uint32_t epoch = 0;
    MemberRecord member;
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> members;
  std::vector<std::int32_t> absent;  ///< not present; ascending
  bool operator==(const Addresses&) const = default;
};

struct Gather {
  std::uint64_t request = 0;  ///< for a Failure only
  std::string name;
  Bytes value;
  bool while_waiting = false;  ///< the value counts only while its sender waits
  // The following are the same in all messages of one gather.
  /// Members that were lost since the last `meeting` are not waited for: their values are empty.
  bool survivors = false;
  bool meeting = false;  ///< once all values have arrived, no member counts as lost any more
  bool operator==(const Gather&) const = default;
};
/// All values have arrived.
struct Gathered {
  std::string name;
  std::vector<Bytes> values;  ///< by member
  bool operator==(const Gathered&) const = default;
};
/// The sender no longer waits; the answer lists the missing members.
struct GatherQuit {
  std::string name;
  bool operator==(const GatherQuit&) const = default;
};
struct GatherAbsent {
  std::string name;
  bool lost = false;                  ///< these members have gone, so that the gather cannot complete
  std::vector<std::int32_t> members;  ///< ascending
  bool operator==(const GatherAbsent&) const = default;
};

/// A member has stopped in this exchange. The rendezvous passes the first notice about an exchange on to all members.
struct ExchangeGivenUp {
  std::uint64_t exchange = 0;         ///< its number in the session, from 1
  std::int32_t member = 0;            ///< the one that has stopped; entered by the rendezvous
  ErrorCode code{};                   ///< the error that has stopped it, with all that follows
  std::string message;                ///< cut to max_failure_bytes
  std::vector<std::int32_t> members;  ///< that the error concerns
  std::vector<Gap> gaps;              ///< the first max_gaps_of_notice
  bool operator==(const ExchangeGivenUp&) const = default;
};

// --- between a reader (restore) and a source (publication) ---
struct ManifestRequest {
  Digest digest{};
  bool operator==(const ManifestRequest&) const = default;
};
struct ManifestReply {
  Digest digest{};
  Bytes encoded;  ///< canonical; its digest must be `digest`
  bool operator==(const ManifestReply&) const = default;
};
struct ValuesRequest {
  Digest digest{};
  bool operator==(const ValuesRequest&) const = default;
};
struct ValuesReply {
  Digest digest{};
  Bytes encoded;
  bool operator==(const ValuesReply&) const = default;
};

/// Takes a lease on the listed boxes; an empty box list of a tensor means all that the source holds of it.
struct TensorRange {
  std::uint32_t tensor = 0;  ///< in the source's manifest
  std::vector<Box> boxes;
  bool operator==(const TensorRange&) const = default;
};
struct Lease {
  std::uint64_t request = 0;
  std::string publication;
  std::uint64_t generation = 0;
  std::vector<TensorRange> ranges;
  bool operator==(const Lease&) const = default;
};
struct Leased {
  std::uint64_t request = 0;
  std::uint64_t lease = 0;
  std::int64_t step = 0;  ///< of the publication
  bool operator==(const Leased&) const = default;
};
/// Ends a lease. The answer reports whether the bytes were unchanged until now.
struct Release {
  std::uint64_t request = 0;
  std::uint64_t lease = 0;
  bool operator==(const Release&) const = default;
};
struct Released {
  std::uint64_t request = 0;
  bool intact = false;
  bool operator==(const Released&) const = default;
};

/// Asks whether a publication that the reader was bound to is still live, and so was live while the reader read from
/// it. Answered by Released.
struct Confirm {
  std::uint64_t request = 0;
  std::string publication;
  std::uint64_t generation = 0;
  bool operator==(const Confirm&) const = default;
};

/// One of the reader's fabrics that it wants to use, so that the source can connect its own to it.
struct FabricHandle {
  std::string name;
  std::string domain;
  Bytes address;
  std::uint64_t sockets = 0;  ///< token of the sockets attached for it; 0: it is already connected, or needs none
  bool operator==(const FabricHandle&) const = default;
};
/// Requests the handles of the tensors under a lease.
struct Bind {
  std::uint64_t request = 0;
  std::uint64_t lease = 0;
  std::vector<FabricHandle> fabrics;
  bool operator==(const Bind&) const = default;
};
/// How a region is reached over one fabric.
struct RegionKey {
  std::uint8_t fabric = 0;  ///< index into Bind::fabrics
  Bytes key;
  std::uint8_t descriptors = 0;  ///< number of its descriptors among those that arrived for the request
  bool operator==(const RegionKey&) const = default;
};
struct RegionHandle {
  std::uint64_t size_bytes = 0;
  std::vector<RegionKey> keys;   ///< none: only the source can send its bytes
  std::uint8_t memory_kind = 0;  ///< one of the constants below, or of a later version
  std::int16_t device = -1;
  static constexpr std::uint8_t host = 0;
  static constexpr std::uint8_t cuda = 1;
  bool operator==(const RegionHandle&) const = default;
};
inline constexpr std::uint32_t no_region = 0xffffffff;
struct TensorHandle {
  std::uint32_t tensor = 0;
  std::uint32_t region = no_region;  ///< index into Bound::regions; no_region: served by packed messages only
  std::uint64_t offset_bytes = 0;    ///< of local element 0 in that region
  Extents strides{};                 ///< of the local array, in elements, none negative; empty: those of the layout
  bool operator==(const TensorHandle&) const = default;
};
struct Bound {
  std::uint64_t request = 0;
  std::vector<Bytes> addresses;      ///< of the source's fabrics, one per entry of Bind::fabrics
  std::uint64_t max_pack_bytes = 0;  ///< maximum payload of one PackRequest to this source
  std::vector<RegionHandle> regions;
  std::vector<TensorHandle> tensors;
  /// A word in memory of the source: the publication's generation while it is live.
  struct Word {
    RegionHandle region;
    std::uint64_t offset_bytes = 0;
    bool operator==(const Word&) const = default;
  };
  std::optional<Word> word{};
  bool digests = false;  ///< answers BlockRequest
  bool operator==(const Bound&) const = default;
};

struct RequestedBox {
  std::uint32_t tensor = 0;  ///< in the source's manifest
  Box box;                   ///< global coordinates, inside one box of the source
  bool operator==(const RequestedBox&) const = default;
};
/// Requests these boxes from the source, each row-major: packed back to back into one message, or one message for each.
/// The headers of the messages are PayloadHeaders.
struct PackRequest {
  std::uint64_t request = 0;
  std::uint64_t lease = 0;  ///< 0: none; `publication` must be live while the source packs. Not with `each`
  std::vector<RequestedBox> parts;
  bool each = false;    ///< one message per part, sent from its location if that is contiguous
  bool digest = false;  ///< with a digest of the elements of each message: of the part's box, or of the digests of all
                        ///< parts' boxes in order
  std::string publication{};  ///< without a lease, like the next field. Only for sources to which the reader is bound
  std::uint64_t generation = 0;
  bool gathered = false;  ///< one message, gathered from the boxes' locations instead of packed; not with `each`
  bool operator==(const PackRequest&) const = default;
};
/// Requests a digest of each box, taken row-major from the source's memory.
struct DigestRequest {
  std::uint64_t request = 0;
  std::uint64_t lease = 0;
  std::vector<RequestedBox> parts;
  bool operator==(const DigestRequest&) const = default;
};
struct Digests {
  std::uint64_t request = 0;
  std::vector<Digest128> digests;  ///< one per part
  bool operator==(const Digests&) const = default;
};

/// Requests digests of blocks that were taken when they were published; see move/blocks.hpp. Answered by Digests, in order.
struct BlockRequest {
  std::uint64_t request = 0;
  std::uint64_t lease = 0;
  struct Range {
    std::uint32_t tensor = 0;  ///< in the source's manifest
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges;  ///< at most max_boxes_per_message blocks in all
  bool operator==(const BlockRequest&) const = default;
};

/// Answer to a request that could not be served (request 0: about the connection).
struct Failure {
  std::uint64_t request = 0;
  ErrorCode code{};
  std::string message;
  std::vector<RequestedBox> parts{};  ///< corrupt: blocks that differ from what was published
  bool operator==(const Failure&) const = default;
};
/// The sender leaves in order: the end of file that follows does not mean that it died.
struct Goodbye {
  bool operator==(const Goodbye&) const = default;
};

/// Requests a sign of life.
struct Ping {
  std::uint64_t number = 0;
  bool operator==(const Ping&) const = default;
};
/// Answer to a Ping.
struct Pong {
  std::uint64_t number = 0;
  bool operator==(const Pong&) const = default;
};

/// Carries descriptors in addition to its bytes, for regions of the answer to `request`, which follows. Within a host
/// only.
struct Descriptors {
  std::uint64_t request = 0;
  std::uint8_t count = 0;  ///< at most max_descriptors_per_message
  bool operator==(const Descriptors&) const = default;
};
/// Makes this connection one of the sockets that the reader's next Bind names by `token`. After the answer both sides
/// hand the socket to a fabric; no further message is sent on it.
struct Attach {
  std::uint64_t token = 0;
  std::uint8_t index = 0;  ///< among the sockets of the token
  bool operator==(const Attach&) const = default;
};
struct Attached {
  bool operator==(const Attached&) const = default;
};

// --- between members and the keeper of their host ---
/// First request of a member: what the keeper holds of earlier sessions is to be published in this one.
struct KeepJob {
  std::uint64_t request = 0;
  std::uint64_t session = 0;  ///< see Joined
  std::string address{};      ///< of member 0, numeric, as reached from here
  std::uint16_t port = 0;
  std::string run_id{};
  std::int32_t world_size = 1;
  Bytes job_key{};            ///< empty: the keeper's own, if it has one
  std::uint32_t attempt = 0;  ///< of the session, as far as the member knows
  /// When the session began, by the monotonic clock of this host, which all its processes share. It did not begin later.
  std::int64_t began_ns = 0;
  bool operator==(const KeepJob&) const = default;
};
/// Answer to KeepJob, once that is published.
struct KeepJoined {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;      ///< of the session, at least as high as the member knew, from 1
  std::uint32_t unpublished = 0;  ///< snapshots that it holds and could not publish
  bool operator==(const KeepJoined&) const = default;
};
/// Asks for memory for a snapshot.
struct KeepBegin {
  std::uint64_t request = 0;
  std::string publication;
  std::int64_t step = 0;
  std::int32_t layout_rank = 0;
  std::uint32_t steps = 1;  ///< to keep of this name, the one that is being written not counted
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> free{};  ///< buffers of this connection that the trainer reads no more
  struct Restored {
    std::int64_t step = 0;
    std::uint64_t origin = 0;
    bool operator==(const Restored&) const = default;
  };
  std::optional<Restored> restored{};  ///< what the member has restored under this name, last
  /// Copies on other hosts are made once a snapshot is complete, and before the next one begins: one more has to stay.
  bool copied = false;
  bool is_copy = false;         ///< of what a member of another host publishes
  std::int32_t numa_node = -1;  ///< of the thread that publishes; -1: unknown. The keeper need not have that node
  bool operator==(const KeepBegin&) const = default;
};
/// Answer to KeepBegin.
struct KeepBuffer {
  std::uint64_t request = 0;
  std::uint64_t buffer = 0;
  std::uint64_t size_bytes = 0;           ///< of the whole buffer
  std::uint8_t descriptors = 0;           ///< that were handed over before; 0: the trainer has this buffer mapped
  std::vector<std::uint64_t> released{};  ///< of the free ones: the keeper has dropped them, and uses them no more
  bool operator==(const KeepBuffer&) const = default;
};
/// One tensor of a snapshot.
struct KeptTensor {
  std::uint64_t offset_bytes = 0;  ///< of local element 0 in the buffer
  std::uint64_t size_bytes = 0;    ///< up to the end of the last element; 0: travels by value, or nothing is held
  Extents strides{};               ///< empty: dense
  bool operator==(const KeptTensor&) const = default;
};
/// The snapshot is written.
struct KeepDone {
  std::uint64_t request = 0;
  std::uint64_t buffer = 0;
  Bytes manifest{};                   ///< encoded
  Bytes values{};                     ///< encoded
  std::vector<KeptTensor> tensors{};  ///< in the order of the manifest
  /// Of all blocks of all tensors, in this order (move/blocks.hpp), as they were published; empty: without digests.
  std::vector<Digest128> digests{};
  bool operator==(const KeepDone&) const = default;
};
/// The snapshot will not be written, or does not count.
struct KeepQuit {
  std::uint64_t buffer = 0;
  bool forget = false;  ///< the trainer has not mapped the buffer, and will not use it again
  bool operator==(const KeepQuit&) const = default;
};
/// Members of the session have been lost: the keeper is to publish what the trainers of this host have replaced, and these copies of
/// what the lost members published.
struct KeepMembersLost {
  std::vector<std::uint64_t> copies{};  ///< buffers of this trainer
  bool operator==(const KeepMembersLost&) const = default;
};
/// Answer to KeepDone and KeepDrop.
struct Kept {
  std::uint64_t request = 0;
  bool operator==(const Kept&) const = default;
};
struct KeepStatusRequest {
  std::uint64_t request = 0;
  bool operator==(const KeepStatusRequest&) const = default;
};
struct KeepStatus {
  std::uint64_t request = 0;
  std::string json{};  ///< for people and tools
  bool operator==(const KeepStatus&) const = default;
};
/// Drops what is kept under a name, of trainers that have ended; an empty name: under all.
struct KeepDrop {
  std::uint64_t request = 0;
  std::string publication{};
  bool operator==(const KeepDrop&) const = default;
};

using MessageKinds =
    std::variant<Hello, Proof, ManifestRequest, ManifestReply, ValuesRequest, ValuesReply, Lease, Leased, Release,
                 Released, Bind, Bound, PackRequest, DigestRequest, Digests, Failure, Goodbye, Join, Joined, Publish,
                 Watch, Roster, MembershipChanges, Lookup, Addresses, Gather, Gathered, GatherQuit, GatherAbsent,
                 Confirm, Ping, Pong, Descriptors, Attach, Attached, ExchangeGivenUp, Unwatch, BlockRequest, KeepJob,
                 KeepJoined, KeepBegin, KeepBuffer, KeepDone, KeepQuit, Kept, KeepStatusRequest, KeepStatus, KeepDrop,
                 KeepMembersLost, AttemptRaised>;
template <typename Kind, typename Kinds>
inline constexpr bool is_one_of = false;
template <typename Kind, typename... Kinds>
inline constexpr bool is_one_of<Kind, std::variant<Kinds...>> = (std::is_same_v<Kind, Kinds> || ...);

template <typename Kind>
concept MessageKind = is_one_of<Kind, MessageKinds>;
/// One of these kinds. Most files include this header, so the members that take fifty kinds apart are compiled only in encode_message.cpp.
class Message : public MessageKinds {
 public:
  Message();
  template <MessageKind Kind>
  Message(Kind kind) : MessageKinds(std::in_place_type<Kind>, std::move(kind)) {}
  Message(const Message& other);
  Message(Message&& other) noexcept;
  ~Message();
  Message& operator=(const Message& other);
  Message& operator=(Message&& other) noexcept;
  bool operator==(const Message& other) const;
};

/// The number that requests and their answers carry; empty for other messages.
std::optional<std::uint64_t> request_of(const Message& message);

/// Limits of a reader.
inline constexpr std::size_t max_hello_bytes = 16 * 1024;     ///< before the peer has proven the job key
inline constexpr std::size_t max_message_bytes = 256u << 20;  ///< after
inline constexpr std::size_t max_boxes_per_message = 1u << 20;
/// A notice goes to every member, so it is small.
inline constexpr std::size_t max_gaps_of_notice = 64;
inline constexpr std::size_t max_fabrics = 16;
inline constexpr std::size_t max_descriptors_per_message = 64;

/// One message as bytes, without the length prefix of the connection. Always a multiple of 8 bytes.
Bytes encode(const Message& message);
/// Errors: throws Error{transport_failed} that names the field for anything truncated, oversized, unknown or out of
///         bounds; no other effect, whatever the bytes are. Bounded in time and memory by the size of `bytes`.
Message decode(std::span<const std::byte> bytes);

/// Canonical: equal manifests give equal bytes, so their digest identifies them.
Bytes encode_manifest(const Manifest& manifest);
/// Checks every field: extents, dims, dtype, rule parameters, unique keys, the fit of each layout to its tensor, and
/// the alias table.
Manifest decode_manifest(std::span<const std::byte> bytes);

struct NamedValue {
  TensorKey key;
  SharedValue value;
  bool operator==(const NamedValue&) const = default;
};
/// Canonical in the same sense; sorts by key. Equal values travel once, and share their memory after decoding.
Bytes encode_values(const std::vector<NamedValue>& values);
std::vector<NamedValue> decode_values(std::span<const std::byte> bytes);

/// BLAKE2b-256.
Digest digest_of(std::span<const std::byte> bytes);
/// HMAC-SHA-256 proof that the sender of `mine` knows `key`: covers the role, both hellos and their order.
Proof prove(std::span<const std::byte> key, bool initiator, const Hello& initiator_hello, const Hello& acceptor_hello);
/// Constant time.
bool same_digest(const Digest& a, const Digest& b);
std::string to_hex(const Digest& digest);

}  // namespace shardwire::wire
