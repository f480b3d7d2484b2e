// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/costs.hpp"

namespace shardwire::perf {

/// Copies until this process has chosen a kernel for each class of run length, with digests and without. A class that was not
/// decided, since the machine was disturbed all the time, is left out. One thread, below a second.
FastestKernels measure_kernels();

}  // namespace shardwire::perf
