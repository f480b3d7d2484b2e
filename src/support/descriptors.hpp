// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace shardwire::support {

/// Makes sure that this process may open `count` more file descriptors; it opens at most one meanwhile. For use before
/// libraries that end the process, or wait for ever, when they are refused one.
/// Errors: throws Error{out_of_resources} saying that there are too few for `what`.
void require_descriptors(int count, std::string_view what);

}  // namespace shardwire::support
