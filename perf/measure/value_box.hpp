// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "case/values.hpp"
#include "memory/device_copy/value_box.hpp"
#include "shardwire/layout.hpp"

namespace shardwire::perf {

/// One box for a device to make or check, or its complement. `local` is memory of that device.
memory::ValueBox value_box(const ElementValues& values, const PlacedBox& placed, std::byte* local,
                           bool complement = false);

}  // namespace shardwire::perf
