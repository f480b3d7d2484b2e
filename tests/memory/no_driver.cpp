// SPDX-License-Identifier: Apache-2.0
// A library with the name of NVIDIA's driver and none of its functions.
extern "C" int shardwire_no_driver() {
  return 0;
}
