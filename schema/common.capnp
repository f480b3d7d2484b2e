# SPDX-License-Identifier: Apache-2.0
@0xf9bda15a703a28b2;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shardwire::schema");

# Digests are sent as four words instead of a pointer to bytes: there is no length to bound or to validate.
struct Digest {
  a @0 :UInt64;  # bytes 0..7, little-endian
  b @1 :UInt64;
  c @2 :UInt64;
  d @3 :UInt64;
}

# Many boxes of any number of dims, without a pointer per box.
struct Boxes {
  dims @0 :List(UInt8);    # one per box
  values @1 :List(Int64);  # per box: its offsets, then its sizes
}
