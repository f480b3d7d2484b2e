// SPDX-License-Identifier: Apache-2.0
#include "control/stored_rendezvous.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>

#include "runtime/clock.hpp"
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

constexpr std::string_view key_word = "key ";

// Empty if the line has no key.
Bytes key_in(std::string_view line) {
  if (!line.starts_with(key_word)) return {};
  line.remove_prefix(key_word.size());
  Bytes key(line.size() / 2);
  for (std::size_t i = 0; i < key.size(); ++i) {
    std::uint8_t byte = 0;
    const char* const end = line.data() + 2 * i + 2;
    if (std::from_chars(end - 2, end, byte, 16).ptr != end) return {};
    key[i] = std::byte{byte};
  }
  return line.size() % 2 == 0 ? key : Bytes();
}

}  // namespace

StoredRendezvous::StoredRendezvous(const Bootstrap& bootstrap, const Interruption& interruption)
    : bootstrap_(bootstrap),
      interruption_(interruption),
      key_(fmt::format("shardwire/rendezvous/{}", bootstrap.run_id)) {
}

void StoredRendezvous::put(const Contact& contact, Duration timeout) {
  std::string text;
  for (const SocketAddress& one : contact.addresses) text += fmt::format("{} {}\n", one.host, one.port);
  if (!contact.job_key.empty()) text += key_word;
  for (const std::byte byte : contact.job_key) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  if (!contact.job_key.empty()) text += '\n';
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  bootstrap_.store->put_within(key_, Bytes(bytes, bytes + text.size()), timeout);
}

StoredRendezvous::Contact StoredRendezvous::wait(Duration timeout, Duration join_timeout) {
  auto value = first_value(timeout);
  if (!value) {
    throw Error(ErrorCode::timed_out,
                fmt::format("member {} of {} could not join: waited {} s for member 0, which has put no address under "
                            "'{}' into the store that they share",
                            bootstrap_.rank, bootstrap_.world_size, seconds_of(join_timeout), key_),
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

std::optional<StoredRendezvous::Contact> StoredRendezvous::changed(Duration timeout) {
  auto value = bootstrap_.store->get(key_, timeout);
  if (!value || *value == seen_) return std::nullopt;
  seen_ = std::move(*value);
  return parse();
}

StoredRendezvous::Contact StoredRendezvous::parse() const {
  std::string_view text(reinterpret_cast<const char*>(seen_.data()), seen_.size());
  Contact contact;
  bool sound = !text.empty() && text.size() <= max_value_bytes && text.back() == '\n';
  while (sound && !text.empty()) {
    const std::size_t line = text.find('\n');
    if (Bytes key = key_in(text.substr(0, line)); !key.empty()) {
      contact.job_key = std::move(key);
    } else {
      const auto address = address_in(text.substr(0, line));
      sound = address.has_value();
      if (address) contact.addresses.push_back(*address);
    }
    text.remove_prefix(line + 1);
  }
  if (!sound || contact.addresses.empty()) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("what the store has under '{}' is no list of a member 0's addresses", key_));
  }
  return contact;
}

}  // namespace shardwire
