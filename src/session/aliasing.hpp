// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "session/publication.hpp"

namespace shardwire {

/// Refuses a restore whose destination overlaps itself or memory that this member publishes in place: a source must not
/// be overwritten while it is being read.
/// Errors: throws Error{invalid_argument} naming both tensors.
void check_aliasing(const Catalog& wanted, const std::vector<std::shared_ptr<detail::PublicationState>>& published);

}  // namespace shardwire
