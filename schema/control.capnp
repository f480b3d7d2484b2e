# SPDX-License-Identifier: Apache-2.0
# What members say to each other on their control connections. Meanings: src/wire/messages.hpp.
@0xa9101eab738e85f0;

using Cxx = import "/capnp/c++.capnp";
using Common = import "common.capnp";
using Store = import "manifest.capnp";
$Cxx.namespace("shardwire::schema");

struct Message {
  union {
    unset @0 :Void;  # what a message of all zeros says: always refused
    hello @1 :Hello;
    proof @2 :Proof;
    obsolete3 @3 :Void;  # 3 to 5: the store of version 1, which gave every entry to everybody
    obsolete4 @4 :Void;
    obsolete5 @5 :Void;
    manifestRequest @6 :BlobRequest;
    manifestReply @7 :BlobReply;
    valuesRequest @8 :BlobRequest;
    valuesReply @9 :BlobReply;
    lease @10 :Lease;
    leased @11 :LeaseRef;
    release @12 :LeaseRef;
    released @13 :Released;
    bind @14 :Bind;
    bound @15 :Bound;
    packRequest @16 :PartsRequest;
    digestRequest @17 :PartsRequest;
    digests @18 :Digests;
    failure @19 :Failure;
    goodbye @20 :Void;
    join @21 :Store.MemberRecord;
    joined @22 :Joined;
    publish @23 :Publish;
    watch @24 :Watch;
    roster @25 :Roster;
    departures @26 :Departures;
    lookup @27 :Lookup;
    addresses @28 :Addresses;
    gather @29 :Gather;
    gathered @30 :Gathered;
    gatherQuit @31 :GatherQuit;
    gatherAbsent @32 :GatherAbsent;
    confirm @33 :Confirm;  # under the capability "confirm"
    ping @34 :Ping;        # this and the next under the capability "ping"
    pong @35 :Ping;
    descriptors @36 :Descriptors;
    attach @37 :Attach;
    attached @38 :Void;
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
  turn @0 :UInt32;
}

struct Publish {
  publication @0 :Text;
  record @1 :Store.PublicationRecord;
}

struct Watch {
  publication @0 :Text;
}

# Who publishes what under one name, or what has changed of it. Thousands of members differ in their numbers only: groups
# of equal publications, and runs of members that belong to them. Digests that repeat are sent once.
struct Roster {
  publication @0 :Text;
  whole @1 :Bool;
  digests @2 :List(Common.Digest);
  groups @3 :List(Group);  # only those that the receiver does not know yet
  runs @4 :Data;           # see src/wire/runs.hpp

  struct Group {
    number @0 :UInt32;  # not 0, which means: publishes nothing
    turn @1 :UInt32;
    step @2 :Int64;
    generation @3 :UInt64;
    manifest @4 :UInt32;  # of digests
    values @5 :UInt32;
  }
}

struct Departures {
  runs @0 :Data;  # groups are 0: is there (again), 1: left, 2: lost
}

struct Lookup {
  members @0 :List(Int32);  # ascending
}

struct Addresses {
  hosts @0 :List(Text);
  members @1 :List(Address);
  absent @2 :List(Int32);  # asked for, but not there; ascending

  struct Address {
    rank @0 :Int32;
    turn @1 :UInt32;
    incarnation @2 :UInt64;
    host @3 :UInt32;  # of hosts
    port @4 :UInt16;
    address @5 :Text;
    localPath @6 :Text;
  }
}

struct Gather {
  request @0 :UInt64;
  name @1 :Text;
  value @2 :Data;
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

struct LeaseRef {
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
  obsolete2 @2 :Text;  # 2 to 4: the one fabric of version 2
  obsolete3 @3 :Text;
  obsolete4 @4 :Data;
  fabrics @5 :List(FabricHandle);
}

struct FabricHandle {
  name @0 :Text;
  domain @1 :Text;
  address @2 :Data;
  sockets @3 :UInt64;  # 0: the fabrics are connected already, or need none
}

struct RegionHandle {
  sizeBytes @0 :UInt64;
  obsolete1 @1 :Data;  # the key of the one fabric of version 2
  keys @2 :List(RegionKey);
  memoryKind @3 :UInt8;  # 0: host, 1: CUDA; of any other the reader knows no path
  device @4 :Int16 = -1;
}

struct RegionKey {
  fabric @0 :UInt8;  # of Bind.fabrics
  key @1 :Data;
  descriptors @2 :UInt8;  # as many of those that were handed over before, in order
}

struct TensorHandle {
  tensor @0 :UInt32;
  region @1 :UInt32 = 0xffffffff;
  offsetBytes @2 :UInt64;
  strides @3 :List(Int64);  # none: dense, as the layout says
}

struct Bound {
  request @0 :UInt64;
  maxPackBytes @1 :UInt64;
  obsolete2 @2 :Data;
  regions @3 :List(RegionHandle);
  tensors @4 :List(TensorHandle);
  markRegion @5 :RegionHandle;  # none: no mark
  markOffsetBytes @6 :UInt64;
  addresses @7 :List(Data);  # one for each of Bind.fabrics
}

struct PartsRequest {
  request @0 :UInt64;
  lease @1 :UInt64;          # 0: see publication
  tensors @2 :List(UInt32);  # one per box
  boxes @3 :Common.Boxes;
  each @4 :Bool;    # pack requests only, as those that follow; this and the next under the capability "straight"
  digest @5 :Bool;
  publication @6 :Text;  # without a lease: what is to be live; under the capability "unleased"
  generation @7 :UInt64;
  gathered @8 :Bool;  # one message, sent from where the boxes lie
  treeDigests @9 :Bool;  # digest requests too; under the capability "tree-digest"
}

struct Digests {
  request @0 :UInt64;
  words @1 :List(UInt64);  # low, high of each part
}

struct Ping {
  number @0 :UInt64;
}

# Comes with so many descriptors, on connections within a host.
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
  withdrawn @9;  # this and the next under the capability "withdrawn"
  stepMismatch @10;
}

struct Failure {
  request @0 :UInt64;
  code @1 :ErrorCode;
  message @2 :Text;
}
