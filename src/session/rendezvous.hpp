// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "session/connection.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// Keys of the store.
std::string member_key(int rank);
std::string publication_key(const std::string& name, int rank);
std::string lost_key(int rank);
std::string gather_key(const std::string& name, int rank);
inline constexpr const char* member_prefix = "member/";
inline constexpr const char* publication_prefix = "publication/";
inline constexpr const char* lost_prefix = "lost/";

/// The key-value store inside member 0. A member's connection that ends without goodbye leaves a "lost/<rank>" entry.
/// Threads: loop thread only.
class Rendezvous {
 public:
  using Deliver = std::function<void(const wire::StoreEntry&)>;

  /// Entries for member 0 itself go to `own`.
  explicit Rendezvous(Deliver own) : own_(std::move(own)) {}

  /// From a connection; null: member 0 itself. Errors: throws Error{invalid_argument} when a member of that number is there
  /// already, or when a member writes an entry of another one.
  void put(Connection* from, const std::string& key, const Bytes& value);
  void watch(Connection* from, const std::string& prefix);
  void closed(Connection& connection, bool orderly);

 private:
  struct Client {
    std::shared_ptr<Connection> connection;  // owners: the session's table of connections and this entry
    std::set<std::string> prefixes;
    int rank = -1;  // once it has put its member record
    std::uint64_t incarnation = 0;
  };

  Client& client_of(Connection& connection);
  void check_owner(Connection* from, const std::string& key);
  /// Stores an entry and tells everybody who watches its key.
  void keep(const wire::StoreEntry& entry);

  Deliver own_;
  std::set<std::string> own_prefixes_;
  std::map<std::string, Bytes> entries_;
  std::map<std::uint64_t, Client> clients_;  // by connection
};

}  // namespace shardwire
