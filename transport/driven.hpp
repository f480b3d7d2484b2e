// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardwire::transport {

/// Work that advances only when its owner's thread calls; see Fabric for the three calls.
class Driven {
 public:
  virtual bool progress() = 0;
  [[nodiscard]] virtual int event_descriptor() const = 0;
  virtual bool arm() = 0;

 protected:
  ~Driven() = default;
};

}  // namespace shardwire::transport
