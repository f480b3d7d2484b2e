// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Libfabric's registration caches keep withdrawn memory readable by peers. Only the environment can disable them.
namespace shardwire::transport::libfabric {

/// Sets the variables that disable the caches; call it once per process before any libfabric call. Values that the user
/// has set stay. The variables remain set, because some providers read them later and because a thread that reads the
/// environment while it changes may crash.
void switch_caches_off();

/// Whether libfabric has read its variables.
bool is_initialised();

/// A warning if libfabric had read its variables before the first call and the user had not set them; otherwise empty.
/// Call it before switch_caches_off().
const std::string& why_caches_may_be_on();

}  // namespace shardwire::transport::libfabric
