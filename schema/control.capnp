# SPDX-License-Identifier: Apache-2.0
# Messages between members on their control connections. Meanings: src/wire/messages.hpp.
@0xa9101eab738e85f0;

using Cxx = import "/capnp/c++.capnp";
using Common = import "common.capnp";
using Store = import "manifest.capnp";
$Cxx.namespace("shardwire::schema");

struct Message {
  union {
    unset @0 :Void;   # the value of an all-zero message: always refused
    hello @1 :Hello;  # in every version, like failure (19)
    proof @2 :Proof;
    manifestRequest @3 :BlobRequest;
    manifestReply @4 :BlobReply;
    valuesRequest @5 :BlobRequest;
    valuesReply @6 :BlobReply;
    lease @7 :Lease;
    leased @8 :Leased;
    release @9 :Release;
    released @10 :Released;
    bind @11 :Bind;
    bound @12 :Bound;
    packRequest @13 :PartsRequest;
    digestRequest @14 :PartsRequest;
    digests @15 :Digests;
    goodbye @16 :Void;
    join @17 :Store.MemberRecord;
    joined @18 :Joined;
    failure @19 :Failure;
    publish @20 :Publish;
    watch @21 :Watch;
    roster @22 :Roster;
    membershipChanges @23 :MembershipChanges;
    lookup @24 :Lookup;
    addresses @25 :Addresses;
    gather @26 :Gather;
    gathered @27 :Gathered;
    gatherQuit @28 :GatherQuit;
    gatherAbsent @29 :GatherAbsent;
    confirm @30 :Confirm;
    ping @31 :Ping;
    pong @32 :Ping;
    descriptors @33 :Descriptors;
    attach @34 :Attach;
    attached @35 :Void;
    exchangeGivenUp @36 :ExchangeGivenUp;
    unwatch @37 :Watch;
    blockRequest @38 :BlockRequest;
    keepJob @39 :KeepJob;
    keepJoined @40 :KeepJoined;
    keepBegin @41 :KeepBegin;
    keepBuffer @42 :KeepBuffer;
    keepDone @43 :KeepDone;
    keepQuit @44 :KeepQuit;
    kept @45 :Kept;
    keepStatusRequest @46 :KeepStatusRequest;
    keepStatus @47 :KeepStatus;
    keepDrop @48 :KeepDrop;
    keepMembersLost @49 :KeepMembersLost;
    attemptRaised @50 :AttemptRaised;
  }
}

struct Hello {
  version @0 :UInt32;
  rank @1 :Int32;
  worldSize @2 :Int32;
  incarnation @3 :UInt64;
  capabilities @4 :List(Text);
  host @5 :Text;
  nonce @6 :Common.Digest;
  runId @7 :Text;  # none: a job without a name
  fabrics @8 :List(FabricOffer);
}

struct FabricOffer {
  name @0 :Text;
  domain @1 :Text;
}

struct Proof {
  digest @0 :Common.Digest;
}

struct Joined {
  epoch @0 :UInt32;
  member @1 :Int32;
  worldSize @2 :Int32;
  session @3 :UInt64;
  attempt @4 :UInt32;  # 0: no keeper has counted the session yet
  ageNs @5 :UInt64;
}

struct AttemptRaised {
  attempt @0 :UInt32;
}

struct Publish {
  publication @0 :Text;
  record @1 :Store.PublicationRecord;
}

struct Watch {
  publication @0 :Text;
}

# The publications under one name, or their changes. Thousands of members differ only in their numbers: groups of equal
# publications, and runs of members that belong to them. Digests that repeat are sent once.
struct Roster {
  publication @0 :Text;
  whole @1 :Bool;
  digests @2 :List(Common.Digest);
  groups @3 :List(Group);  # only those that the receiver does not know yet
  runs @4 :Data;           # see src/wire/runs.hpp

  struct Group {
    number @0 :UInt32;  # not 0, which means: publishes nothing
    epoch @1 :UInt32;
    step @2 :Int64;
    generation @3 :UInt64;
    manifest @4 :UInt32;  # index into digests
    values @5 :UInt32;
    origin @6 :UInt64;
    attempt @7 :UInt32;
  }
}

struct MembershipChanges {
  runs @0 :Data;  # groups are 0: present (again), 1: left, 2: lost
}

struct Lookup {
  members @0 :List(Int32);  # ascending
}

struct Addresses {
  hosts @0 :List(Text);
  members @1 :List(Address);
  absent @2 :List(Int32);  # requested, but not present; ascending

  struct Address {
    rank @0 :Int32;
    epoch @1 :UInt32;
    incarnation @2 :UInt64;
    host @3 :UInt32;  # index into hosts
    port @4 :UInt16;
    address @5 :Text;
    localPath @6 :Text;
    domain @7 :UInt32;  # index into hosts
  }
}

struct Gather {
  request @0 :UInt64;
  name @1 :Text;
  value @2 :Data;
  whileWaiting @3 :Bool;
  survivors @4 :Bool;
  meeting @5 :Bool;
}

struct Gathered {
  name @0 :Text;
  values @1 :List(Data);  # of members 0, 1, ..
}

struct GatherQuit {
  name @0 :Text;
}

struct GatherAbsent {
  name @0 :Text;
  lost @1 :Bool;
  members @2 :List(Int32);  # ascending
}

struct ExchangeGivenUp {
  exchange @0 :UInt64;
  member @1 :Int32;
  code @2 :ErrorCode;
  message @3 :Text;
  members @4 :List(Int32);
  gaps @5 :List(Gap);
  gapBoxes @6 :Common.Boxes;  # one for each gap

  struct Gap {
    fqn @0 :Text;
    state @1 :Text;
    target @2 :Int32;
  }
}

struct BlobRequest {
  digest @0 :Common.Digest;
}

struct BlobReply {
  digest @0 :Common.Digest;
  encoded @1 :Data;
}

struct TensorRange {
  tensor @0 :UInt32;
  boxes @1 :Common.Boxes;  # null: all that the source holds
}

struct Lease {
  request @0 :UInt64;
  generation @1 :UInt64;
  publication @2 :Text;
  ranges @3 :List(TensorRange);
}

struct Confirm {
  request @0 :UInt64;
  generation @1 :UInt64;
  publication @2 :Text;
}

struct Leased {
  request @0 :UInt64;
  lease @1 :UInt64;
  step @2 :Int64;  # of the publication
}

struct Release {
  request @0 :UInt64;
  lease @1 :UInt64;
}

struct Released {
  request @0 :UInt64;
  intact @1 :Bool;
}

struct Bind {
  request @0 :UInt64;
  lease @1 :UInt64;
  fabrics @2 :List(FabricHandle);
}

struct FabricHandle {
  name @0 :Text;
  domain @1 :Text;
  address @2 :Data;
  sockets @3 :UInt64;  # 0: the fabrics are already connected, or need none
}

struct RegionHandle {
  sizeBytes @0 :UInt64;
  keys @1 :List(RegionKey);
  memoryKind @2 :UInt8;  # 0: host, 1: CUDA; the reader knows no path for others
  device @3 :Int16 = -1;
}

struct RegionKey {
  fabric @0 :UInt8;  # index into Bind.fabrics
  key @1 :Data;
  descriptors @2 :UInt8;  # number of its descriptors among those handed over before, in order
}

struct TensorHandle {
  tensor @0 :UInt32;
  region @1 :UInt32 = 0xffffffff;
  offsetBytes @2 :UInt64;
  strides @3 :List(Int64);  # none: dense, as the layout gives
}

struct Bound {
  request @0 :UInt64;
  maxPackBytes @1 :UInt64;
  regions @2 :List(RegionHandle);
  tensors @3 :List(TensorHandle);
  wordRegion @4 :RegionHandle;  # none: no generation word
  wordOffsetBytes @5 :UInt64;
  addresses @6 :List(Data);  # one per entry of Bind.fabrics
  digests @7 :Bool;  # of blocks, for BlockRequest
}

struct PartsRequest {
  request @0 :UInt64;
  lease @1 :UInt64;          # 0: see publication
  tensors @2 :List(UInt32);  # one per box
  boxes @3 :Common.Boxes;
  each @4 :Bool;             # pack requests only, like the following fields
  digest @5 :Bool;
  publication @6 :Text;      # without a lease: must be live
  generation @7 :UInt64;
  gathered @8 :Bool;  # one message, gathered from the boxes' locations
}

struct BlockRequest {
  request @0 :UInt64;
  lease @1 :UInt64;
  ranges @2 :List(Range);

  struct Range {
    tensor @0 :UInt32;
    first @1 :UInt32;
    count @2 :UInt32;
  }
}

struct Digests {
  request @0 :UInt64;
  words @1 :List(UInt64);  # low, high of each part
}

struct Ping {
  number @0 :UInt64;
}

# Accompanied by that many descriptors, on connections within a host.
struct Descriptors {
  request @0 :UInt64;
  count @1 :UInt8;
}

struct Attach {
  token @0 :UInt64;
  index @1 :UInt8;
}

enum ErrorCode {
  invalidArgument @0;
  layoutMismatch @1;
  unsupported @2;
  outOfResources @3;
  peerLost @4;
  timedOut @5;
  cancelled @6;
  transportFailed @7;
  internal @8;
  withdrawn @9;
  stepMismatch @10;
  corrupt @11;
}

struct Failure {
  request @0 :UInt64;
  code @1 :ErrorCode;
  message @2 :Text;
  tensors @3 :List(UInt32);  # one per box
  boxes @4 :Common.Boxes;    # corrupt: blocks that differ
}

# Between members and the keeper of their host.

struct KeepJob {
  request @0 :UInt64;
  session @1 :UInt64;
  address @2 :Text;  # of member 0
  port @3 :UInt16;
  runId @4 :Text;
  worldSize @5 :Int32;
  jobKey @6 :Data;  # none: that of the keeper, or there is none
  attempt @7 :UInt32;
  beganNs @8 :Int64;
}

struct KeepJoined {
  request @0 :UInt64;
  attempt @1 :UInt32;
  unpublished @2 :UInt32;
}

struct KeepBegin {
  request @0 :UInt64;
  publication @1 :Text;
  step @2 :Int64;
  place @3 :Int32;
  steps @4 :UInt32;
  sizeBytes @5 :UInt64;
  free @6 :List(UInt64);
  restored @7 :Bool;
  restoredStep @8 :Int64;
  restoredOrigin @9 :UInt64;
  copied @10 :Bool;  # to other hosts, once it is complete
  isCopy @11 :Bool;  # of what another host's member publishes
  numaNode @12 :Int32 = -1;  # of the thread that publishes; -1: unknown
}

# Comes after the descriptors of its memory, if that is new to the trainer.
struct KeepBuffer {
  request @0 :UInt64;
  buffer @1 :UInt64;
  sizeBytes @2 :UInt64;
  descriptors @3 :UInt8;
  released @4 :List(UInt64);
}

struct KeepDone {
  request @0 :UInt64;
  buffer @1 :UInt64;
  manifest @2 :Data;
  values @3 :Data;
  tensors @4 :List(Tensor);  # in the order of the manifest
  digests @5 :List(UInt64);  # low, high of each block of each tensor; none: it was published without

  struct Tensor {
    offsetBytes @0 :UInt64;
    sizeBytes @1 :UInt64;
    strides @2 :List(Int64);  # none: dense, as the layout gives
  }
}

struct KeepQuit {
  buffer @0 :UInt64;
  forget @1 :Bool;
}

struct Kept {
  request @0 :UInt64;
}

struct KeepStatusRequest {
  request @0 :UInt64;
}

struct KeepStatus {
  request @0 :UInt64;
  json @1 :Text;
}

struct KeepMembersLost {
  copies @0 :List(UInt64);  # buffers, of what they published
}

struct KeepDrop {
  request @0 :UInt64;
  publication @1 :Text;
}
