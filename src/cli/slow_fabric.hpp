// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "transport/transport.hpp"

namespace shardwire::cli {

/// `inner`, which sends at `bytes_per_second`, else at 1 % of its measured speed, from the moment that `slow` becomes true.
/// Memory that others map or read by themselves is not sent, and stays as fast as it is.
/// Ownership: borrows `slow`.
std::unique_ptr<transport::Fabric> slowable(std::unique_ptr<transport::Fabric> inner, const std::atomic<bool>& slow,
                                            std::optional<double> bytes_per_second = {});

}  // namespace shardwire::cli
