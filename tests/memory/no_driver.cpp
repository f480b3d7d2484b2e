// SPDX-License-Identifier: Apache-2.0
// A library that has the name of the NVIDIA driver's, and nothing else of it.
extern "C" int shardwire_no_driver() {
  return 0;
}
