// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "session/source/publication.hpp"

namespace shardwire {

/// Refuses a restore whose destination shares a byte with itself or with memory that this member publishes in place: a
/// source must not be overwritten while it is being read. Tensors that interleave without sharing one (fused weights,
/// ranges of one flat shard) are no conflict.
/// Errors: throws Error{invalid_argument} naming both tensors, their rank and what to do.
void check_aliasing(const Catalog& wanted, const std::vector<std::shared_ptr<detail::PublicationState>>& published);

/// Refuses to publish `fresh` in place of `live` where both are in place and share a byte: readers of the old generation
/// would find the new one's bytes.
/// Errors: throws Error{invalid_argument} naming both tensors and what to do.
void check_update(const detail::PublicationState& live, const detail::PublicationState& fresh);

}  // namespace shardwire
