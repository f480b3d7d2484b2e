// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "memory/device.hpp"
#include "memory/device_copy/value_box.hpp"

namespace shardwire::memory {

/// Generates values on a device and checks them there, for tests and for commands that try restores. A stream that
/// supports this implements it in addition to DeviceStream. Order and errors: those of the stream. Boxes are copied.
class DeviceCheck {
 public:
  virtual ~DeviceCheck() = default;
  /// Writes the values of the boxes.
  virtual void fill(std::span<const ValueBox> boxes) = 0;
  /// Adds the number of elements that differ from the boxes to `wrong`, which is borrowed until the stream has passed
  /// it.
  virtual void count_wrong(std::span<const ValueBox> boxes, std::uint64_t& wrong) = 0;
};

/// Null if the stream does not support it.
inline DeviceCheck* check_of(DeviceStream& stream) {
  return dynamic_cast<DeviceCheck*>(&stream);
}

}  // namespace shardwire::memory
