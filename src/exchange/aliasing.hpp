// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "serve/publication.hpp"

namespace shardwire {

/// Refuses a restore whose destination shares a byte with itself or with memory that this member publishes in place: a
/// source must not be overwritten while it is being read. Tensors that interleave without sharing a byte (fused
/// weights, ranges of one flat shard) do not conflict.
/// Errors: throws Error{invalid_argument} naming both tensors, their rank and a remedy.
void check_aliasing(const Catalog& wanted, const std::vector<std::shared_ptr<detail::PublicationState>>& published);

/// Refuses an update if `fresh` and `live` are both in place and share a byte: readers of the old generation would read
/// bytes of the new one.
/// Errors: throws Error{invalid_argument} naming both tensors and a remedy.
void check_update(const detail::PublicationState& live, const detail::PublicationState& fresh);

}  // namespace shardwire
