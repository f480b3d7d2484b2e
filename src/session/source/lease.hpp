// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "session/source/publication.hpp"

namespace shardwire {

/// What a reader asks to have under a lease, checked. Errors: throws Error{invalid_argument} for tensors that are not in the
/// manifest, and boxes that do not fit them or overlap.
std::vector<detail::Lease::Tensor> leased_tensors(const wire::Lease& request, const Manifest& manifest);

bool covers(const detail::Lease& lease, const wire::RequestedBox& part);

}  // namespace shardwire
