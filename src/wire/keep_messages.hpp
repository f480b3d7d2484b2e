// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schema/control.capnp.h"
#include "wire/capnp_input.hpp"
#include "wire/messages.hpp"

// Messages between members and the keeper of their host: their part of encode() and decode().
namespace shardwire::wire {

void write(schema::Message::Builder out, const KeepJob& job);
void write(schema::Message::Builder out, const KeepJoined& joined);
void write(schema::Message::Builder out, const KeepBegin& begin);
void write(schema::Message::Builder out, const KeepBuffer& buffer);
void write(schema::Message::Builder out, const KeepDone& done);
void write(schema::Message::Builder out, const KeepQuit& quit);
void write(schema::Message::Builder out, const Kept& kept);
void write(schema::Message::Builder out, const KeepStatusRequest& request);
void write(schema::Message::Builder out, const KeepStatus& status);
void write(schema::Message::Builder out, const KeepDrop& drop);
void write(schema::Message::Builder out, const KeepMembersLost& lost);

/// Requires: the message is one of the above.
Message read_keep_message(schema::Message::Reader from, Input& in);

}  // namespace shardwire::wire
