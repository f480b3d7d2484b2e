// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "move/tuning.hpp"
#include "shardwire/costs.hpp"

namespace shardwire::perf {

/// Copies until this process has chosen a kernel for each class of run length, with and without digests. A class that
/// remained undecided because of constant disturbances is omitted. One thread, less than a second.
FastestKernels measure_kernels();

}  // namespace shardwire::perf
