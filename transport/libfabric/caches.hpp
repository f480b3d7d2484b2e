// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Libfabric's caches of registrations keep open to peers what was withdrawn. The environment is the only way to switch them off.
namespace shardwire::transport::libfabric {

/// Once per process, before libfabric is asked anything: sets the variables that switch them off; what the user has set stays. They
/// stay set, for some providers look again later, and because a thread that reads the environment while it changes may crash.
void switch_caches_off();

/// Whether libfabric has read its variables.
bool is_initialised();

/// What to say when libfabric had read its variables before this was asked for the first time, and nobody had set them; else empty.
/// To be asked before switch_caches_off().
const std::string& why_caches_may_be_on();

}  // namespace shardwire::transport::libfabric
