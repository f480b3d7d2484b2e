// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "schema/control.capnp.h"
#include "wire/capnp_input.hpp"
#include "wire/messages.hpp"

// Messages between members and the rendezvous: their part of encode() and decode().
namespace shardwire::wire {

void write(schema::Message::Builder out, const Join& join);
void write(schema::Message::Builder out, const Joined& joined);
void write(schema::Message::Builder out, const Publish& publish);
void write(schema::Message::Builder out, const Watch& watch);
void write(schema::Message::Builder out, const Roster& roster);
void write(schema::Message::Builder out, const MembershipChanges& membership_changes);
void write(schema::Message::Builder out, const Lookup& lookup);
void write(schema::Message::Builder out, const Addresses& addresses);
void write(schema::Message::Builder out, const Gather& gather);
void write(schema::Message::Builder out, const Gathered& gathered);
void write(schema::Message::Builder out, const GatherQuit& quit);
void write(schema::Message::Builder out, const GatherAbsent& absent);
void write(schema::Message::Builder out, const ExchangeGivenUp& notice);
void write(schema::Message::Builder out, const Unwatch& unwatch);
void write(schema::Message::Builder out, const AttemptRaised& raised);

/// Requires: the message is one of the above.
Message read_rendezvous_message(schema::Message::Reader from, Input& in);

}  // namespace shardwire::wire
