# SPDX-License-Identifier: Apache-2.0
# Data that members send to the rendezvous or serve by digest. Manifest and Values exist in canonical form only.
@0x972c3da5c73f3da9;

using Cxx = import "/capnp/c++.capnp";
using Common = import "common.capnp";
$Cxx.namespace("shardwire::schema");

struct MemberRecord {
  rank @0 :Int32;
  port @1 :UInt16;
  incarnation @2 :UInt64;
  host @3 :Text;
  address @4 :Text;
  localPath @5 :Text;
  domain @6 :Text;  # what fails together; empty: the host
}

struct PublicationRecord {
  member @0 :Int32;
  place @1 :Int32;
  step @2 :Int64;
  generation @3 :UInt64;
  withdrawn @4 :Bool;
  manifest @5 :Common.Digest;
  values @6 :Common.Digest;
  origin @7 :UInt64;
  attempt @8 :UInt32;
}

# A layout rule in its neutral form, so that a new kind of layout needs no schema change.
struct Rule {
  kind @0 :Text;
  fields @1 :List(Field);
  inner @2 :List(Rule);

  struct Field {
    name @0 :Text;
    values @1 :List(Int64);
  }
}

# A job has thousands of tensors, but few shapes and fewer rules, and every parameter has several states: hence tables
# of distinct values, in order of first use, and rows of numbers. The large ones are bytes:
# src/wire/manifest_tables.hpp.
struct Manifest {
  ranks @0 :Int32;
  names @1 :Data;
  states @2 :List(Text);
  shapes @3 :List(List(Int64));
  rules @4 :List(Rule);
  tensors @5 :Data;
  aliases @6 :List(Alias);  # ascending by alias; not set if there are none

  struct Alias {
    alias @0 :Text;
    fqn @1 :Text;
  }
}

# Many keys have few values: each parameter has the options of its group, and a step. Hence tables here too.
struct Values {
  names @0 :Data;
  states @1 :List(Text);
  distinct @2 :List(Item);
  rows @3 :Data;  # ascending by (fqn, state); like those of a manifest, with the value's number in place of a dtype

  # Lists, tuples and maps may contain others. No item is all zeros, so each takes a word of the message.
  struct Item {
    union {
      unset @0 :Void;
      none @1 :Void;
      boolean @2 :Bool;
      integer @3 :Int64;
      float @4 :UInt64;  # bits of an IEEE double: preserves the payload of a NaN
      text @5 :Data;     # any bytes, zeros included
      data @6 :Data;
      tensor @7 :Tensor;
      list @8 :List(Item);
      tuple @9 :List(Item);
      map @10 :List(Pair);
    }
  }

  # Of a map, ascending by key.
  struct Pair {
    key @0 :Data;  # any bytes, like a text
    value @1 :Item;
  }

  struct Tensor {
    dtype @0 :UInt32;  # number of a DType, see shardwire/tensor.hpp
    shape @1 :List(Int64);
    bytes @2 :Data;
  }
}
