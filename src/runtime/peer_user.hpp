// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace shardwire {

/// The user, in this process's user namespace, to whose process the other end of a connected stream socket belongs, by the
/// kernel's word. Empty if it is on another host or in another network namespace, if its process has closed it, or has not
/// accepted it yet.
/// Cost: one call for a local socket; for one of the network, a pass over the connections of this network namespace.
std::optional<uid_t> user_of_peer(int socket);

enum class PeerUser : std::uint8_t {
  own,      ///< a process of this process's user
  other,    ///< a process of another user, or on another host
  unknown,  ///< of this host, and the kernel does not say whose: it may have ended the connection
};
PeerUser peer_user(int socket);

}  // namespace shardwire
