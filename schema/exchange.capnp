# SPDX-License-Identifier: Apache-2.0
# Messages between members of an exchange at its barriers. Meanings: src/wire/exchange_note.hpp.
@0xb7c1d5a2e94f3a68;

using Cxx = import "/capnp/c++.capnp";
using Common = import "common.capnp";
using Control = import "control.capnp";
$Cxx.namespace("shardwire::schema");

struct ExchangeNote {
  failed @0 :Bool;
  code @1 :Control.ErrorCode;  # with `failed` only
  message @2 :Text;
  parts @3 :List(Part);
  writes @4 :List(Write);
  aliases @5 :List(Alias);
  stagingBytes @6 :UInt64;
  collectives @7 :List(Text);
  forced @8 :Bool;
  groupId @9 :Data;
  steps @10 :UInt32;
  requests @11 :List(Request);
  requestBoxes @12 :Common.Boxes;  # one for each request
  device @13 :Int16 = -1;
  unasked @14 :Bool;
  adopts @15 :Bool;
  keptGroup @16 :Data;
  indirect @17 :Bool;
  keptSize @18 :UInt32;
  number @19 :UInt64;
  heldRank @20 :Int32 = -1;

  struct Part {
    fqn @0 :Text;
    state @1 :Text;
    index @2 :UInt32;
    count @3 :UInt32;
  }
  struct Alias {
    alias @0 :Text;
    fqn @1 :Text;
  }
  struct Request {
    source @0 :UInt32;
    tensor @1 :UInt32;
    bytes @2 :UInt64;
    runBytes @3 :UInt64;
    itemBytes @4 :UInt32;
  }
  struct Write {
    part @0 :UInt32;
    bytes @1 :UInt64;
    destroys @2 :List(UInt32);
  }
}
