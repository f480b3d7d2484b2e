# SPDX-License-Identifier: Apache-2.0
# What members say to each other on their control connections. Meanings: src/wire/messages.hpp.
@0xa9101eab738e85f0;

using Cxx = import "/capnp/c++.capnp";
using Common = import "common.capnp";
$Cxx.namespace("shardwire::schema");

struct Message {
  union {
    unset @0 :Void;  # what a message of all zeros says: always refused
    hello @1 :Hello;
    proof @2 :Proof;
    storePut @3 :StoreItem;
    storeWatch @4 :StoreWatch;
    storeEntry @5 :StoreItem;
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
}

struct Proof {
  digest @0 :Common.Digest;
}

struct StoreItem {
  key @0 :Text;
  value @1 :Data;
}

struct StoreWatch {
  prefix @0 :Text;
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
  fabric @2 :Text;
  domain @3 :Text;
  address @4 :Data;
}

struct RegionHandle {
  sizeBytes @0 :UInt64;
  key @1 :Data;
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
  address @2 :Data;
  regions @3 :List(RegionHandle);
  tensors @4 :List(TensorHandle);
}

struct PartsRequest {
  request @0 :UInt64;
  lease @1 :UInt64;
  tensors @2 :List(UInt32);  # one per box
  boxes @3 :Common.Boxes;
}

struct Digests {
  request @0 :UInt64;
  words @1 :List(UInt64);  # low, high of each part
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
}

struct Failure {
  request @0 :UInt64;
  code @1 :ErrorCode;
  message @2 :Text;
}
