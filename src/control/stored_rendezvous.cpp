// SPDX-License-Identifier: Apache-2.0
#include "control/stored_rendezvous.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string_view>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

constexpr std::size_t max_value_bytes = 4096;
constexpr Duration max_slice = std::chrono::seconds(1);

// Parses one line. Empty if it is no address.
std::optional<SocketAddress> address_in(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  SocketAddress address{.host = std::string(line.substr(0, space))};
  const char* const end = line.data() + line.size();
  const auto [stopped, error] = std::from_chars(line.data() + space + 1, end, address.port);
  if (error != std::errc() || stopped != end || address.port == 0) return std::nullopt;
  try {
    socket_address(address);
  } catch (const Error&) {
    return std::nullopt;
  }
  return address;
}

}  // namespace

StoredRendezvous::StoredRendezvous(const Bootstrap& bootstrap, const Interruption& interruption)
    : bootstrap_(bootstrap),
      interruption_(interruption),
      key_(fmt::format("shardwire/rendezvous/{}", bootstrap.run_id)) {
}

void StoredRendezvous::put(std::span<const SocketAddress> addresses, Duration timeout) {
  std::string text;
  for (const SocketAddress& one : addresses) text += fmt::format("{} {}\n", one.host, one.port);
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  bootstrap_.store->put_within(key_, Bytes(bytes, bytes + text.size()), timeout);
}

std::vector<SocketAddress> StoredRendezvous::wait(Duration timeout, Duration join_timeout) {
  auto value = first_value(timeout);
  if (!value) {
    throw Error(
        ErrorCode::timed_out,
        fmt::format("member {} of {} could not join: waited {} s for member 0, which has put no address under "
                    "'{}' into the store that they share",
                    bootstrap_.rank, bootstrap_.world_size, std::chrono::duration<double>(join_timeout).count(), key_),
        std::vector<Rank>{Rank{0}});
  }
  seen_ = std::move(*value);
  return parse();
}

// The store is the caller's, so an interruption can only be asked for between calls.
std::optional<Bytes> StoredRendezvous::first_value(Duration timeout) const {
  if (!interruption_.is_possible()) return bootstrap_.store->get(key_, timeout);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    auto value = bootstrap_.store->get(key_, std::clamp<Duration>(left, std::chrono::milliseconds(1), max_slice));
    if (value || left <= max_slice) return value;
    interruption_.check();
  }
}

std::optional<std::vector<SocketAddress>> StoredRendezvous::new_addresses(Duration timeout) {
  auto value = bootstrap_.store->get(key_, timeout);
  if (!value || *value == seen_) return std::nullopt;
  seen_ = std::move(*value);
  return parse();
}

std::vector<SocketAddress> StoredRendezvous::parse() const {
  std::string_view text(reinterpret_cast<const char*>(seen_.data()), seen_.size());
  std::vector<SocketAddress> addresses;
  bool sound = !text.empty() && text.size() <= max_value_bytes && text.back() == '\n';
  while (sound && !text.empty()) {
    const std::size_t line = text.find('\n');
    const auto address = address_in(text.substr(0, line));
    sound = address.has_value();
    if (address) addresses.push_back(*address);
    text.remove_prefix(line + 1);
  }
  if (!sound) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("what the store has under '{}' is no list of a member 0's addresses", key_));
  }
  return addresses;
}

}  // namespace shardwire
