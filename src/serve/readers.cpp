// SPDX-License-Identifier: Apache-2.0
#include "serve/readers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "paths/path_choice.hpp"

namespace shardwire {

const std::shared_ptr<ReaderLoad>& Readers::load_of(std::uint64_t reader) {
  auto& load = loads_[reader];
  if (!load) load = std::make_shared<ReaderLoad>();
  return load;
}

Charge Readers::charge(std::uint64_t reader, const ReaderLoad::Amount& amount) {
  return {load_of(reader), amount};
}

void Readers::check(std::uint64_t reader, const ReaderLoad::Amount& amount) {
  load_of(reader)->check(amount);
}

std::vector<std::size_t> Readers::connect(std::uint64_t reader, const wire::Hello& peer,
                                          const std::vector<wire::FabricHandle>& wanted) {
  std::vector<std::size_t> fabrics;
  for (const wire::FabricHandle& one : wanted) {
    const auto found = fabrics_.find(one.name, one.domain);
    if (!found) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("the reader wants to use fabric {} ({}), which is not open here", one.name, one.domain));
    }
    if (!is_connected(reader, *found, one)) connect(reader, peer, *found, one);
    fabrics.push_back(*found);
  }
  return fabrics;
}

bool Readers::is_connected(std::uint64_t reader, std::size_t fabric, const wire::FabricHandle& wanted) {
  const auto known = connected_.find(reader);
  if (known == connected_.end()) return false;
  const auto channel = known->second.channels.find(fabric);
  if (channel == known->second.channels.end()) return false;
  if (channel->second.token == wanted.sockets) {
    if (!channel->second.endpoint->failed()) return true;
    if (wanted.sockets != 0) throw Error(ErrorCode::peer_lost, "the connection for payloads has ended");
  }
  if (channel->second.endpoint.get() == known->second.messages) known->second.messages = nullptr;
  sends_.abort_connection(std::move(known->second.channels.extract(channel).mapped().endpoint), nullptr);
  return false;
}

void Readers::connect(std::uint64_t reader, const wire::Hello& peer, std::size_t fabric,
                      const wire::FabricHandle& wanted) {
  auto sockets = wanted.sockets == 0 ? std::vector<transport::OpenSocket>{} : sockets_.take(peer, wanted.sockets);
  if (wanted.sockets != 0 && sockets.empty()) {
    throw Error(ErrorCode::peer_lost,
                fmt::format("the sockets for fabric {} are not there, or not any more", wanted.name));
  }
  const bool open = std::ranges::any_of(sockets, [](const auto& one) { return one.encryption == nullptr; });
  if (own_.encrypt_payload && fabrics_[fabric].sockets().encrypt && open) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("this member sends bytes over {} only encrypted (SessionOptions::encrypt_payload), and the reader "
                    "does not encrypt",
                    wanted.name));
  }
  auto endpoint = fabrics_[fabric].connect(
      {.address = wanted.address, .same_host = peer.host == own_.host, .sockets = std::move(sockets)});
  Reader& entry = connected_[reader];
  entry.channels[fabric] = {wanted.sockets, std::move(endpoint)};
  choose_messages(entry);
}

void Readers::choose_messages(Reader& reader) const {
  int best = no_path;
  for (const auto& [index, channel] : reader.channels) {
    const int rank = fabrics_.row(index).preference.message;
    if (rank == 0 || rank >= best || !channel.endpoint->path({}).message) continue;
    best = rank;
    reader.messages = channel.endpoint.get();
  }
}

transport::Endpoint* Readers::messages(std::uint64_t reader) const {
  const auto found = connected_.find(reader);
  return found == connected_.end() ? nullptr : found->second.messages;
}

void Readers::disconnect(std::uint64_t reader, const Error* why) {
  auto found = connected_.extract(reader);
  if (found.empty()) return;
  for (auto& [fabric, channel] : found.mapped().channels) sends_.abort_connection(std::move(channel.endpoint), why);
}

void Readers::remove(std::uint64_t reader) {
  disconnect(reader);
  loads_.erase(reader);
}

}  // namespace shardwire
