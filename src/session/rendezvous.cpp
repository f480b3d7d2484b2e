// SPDX-License-Identifier: Apache-2.0
#include "session/rendezvous.hpp"

#include <fmt/core.h>

#include <charconv>
#include <vector>

namespace shardwire {

namespace {

// Bounds what one member can make member 0 hold.
constexpr std::size_t max_entry_bytes = 64u << 20;
constexpr std::size_t max_key_bytes = 1024;

bool begins_with_any(const std::string& key, const std::set<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    if (key.starts_with(prefix)) return true;
  }
  return false;
}

}  // namespace

std::string member_key(int rank) {
  return fmt::format("{}{}", member_prefix, rank);
}
std::string publication_key(const std::string& name, int rank) {
  return fmt::format("{}{}/{}", publication_prefix, name, rank);
}
std::string lost_key(int rank) {
  return fmt::format("{}{}", lost_prefix, rank);
}
std::string gather_key(const std::string& name, int rank) {
  return fmt::format("gather/{}/{}", name, rank);
}

Rendezvous::Client& Rendezvous::client_of(Connection& connection) {
  Client& client = clients_[connection.id()];
  if (!client.connection) client.connection = connection.shared_from_this();
  return client;
}

void Rendezvous::check_owner(Connection* from, const std::string& key) {
  const int rank = from == nullptr ? 0 : from->peer().rank;
  const std::string own = fmt::format("/{}", rank);
  if (key.size() > max_key_bytes || !key.ends_with(own)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("member {} may not write the entry '{}'", rank, key));
  }
}

void Rendezvous::put(Connection* from, const std::string& key, const Bytes& value) {
  check_owner(from, key);
  if (value.size() > max_entry_bytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the entry '{}' has {} bytes, more than {}", key, value.size(), max_entry_bytes));
  }
  if (from != nullptr && key == member_key(from->peer().rank)) {
    const int rank = from->peer().rank;
    for (const auto& [id, other] : clients_) {
      if (other.rank == rank && id != from->id()) {
        throw Error(ErrorCode::invalid_argument, fmt::format("a member {} has joined already and is alive", rank));
      }
    }
    if (rank == 0) throw Error(ErrorCode::invalid_argument, "a member 0 has joined already and is alive");
    Client& client = client_of(*from);
    client.rank = rank;
    client.incarnation = from->peer().incarnation;
  }
  keep({key, value});
}

void Rendezvous::keep(const wire::StoreEntry& entry) {
  entries_[entry.key] = entry.value;
  if (begins_with_any(entry.key, own_prefixes_)) own_(entry);
  for (auto& [id, client] : clients_) {
    if (begins_with_any(entry.key, client.prefixes)) client.connection->send(entry);
  }
}

void Rendezvous::watch(Connection* from, const std::string& prefix) {
  (from == nullptr ? own_prefixes_ : client_of(*from).prefixes).insert(prefix);
  for (const auto& [key, value] : entries_) {
    if (!key.starts_with(prefix)) continue;
    if (from == nullptr) {
      own_({key, value});
    } else {
      from->send(wire::StoreEntry{key, value});
    }
  }
}

void Rendezvous::closed(Connection& connection, bool orderly) {
  const auto found = clients_.find(connection.id());
  if (found == clients_.end()) return;
  const Client gone = found->second;
  clients_.erase(found);
  if (gone.rank < 0) return;
  // An orderly leave says so too: what it published is gone, but it is no fault.
  const std::string text = fmt::format("{} {}", gone.incarnation, orderly ? "left" : "lost");
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  keep({lost_key(gone.rank), Bytes(bytes, bytes + text.size())});
}

}  // namespace shardwire
