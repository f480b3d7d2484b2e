// SPDX-License-Identifier: Apache-2.0
#include "paths/fabrics.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace shardwire {

Fabrics::Fabrics(std::string_view names, int streams, const LeftOut& left_out) : streams_(streams) {
  const bool automatic = names == transport::automatic;
  std::string reasons;
  for (const transport::Transport* row : transport::select(names)) {
    try {
      opened_.push_back({row, row->open()});
    } catch (const Error& error) {
      // A wrong setting is a user error, even if the transport was chosen automatically.
      if (!automatic || error.code() == ErrorCode::invalid_argument) throw;
      const std::string why = fmt::format("the transport {} cannot be opened: {}", row->name, error.what());
      left_out(why);
      not_open_.emplace(row->name, support::Fallback{FallbackReason::failed, error.what()});
      reasons += "; " + why;
    }
  }
  if (opened_.empty()) throw Error(ErrorCode::unsupported, "no transport can be opened" + reasons);
  for (const transport::Transport& row : transport::registered()) {
    if (std::ranges::find(opened_, &row, &Opened::row) != opened_.end()) continue;
    if (automatic) {
      const transport::Viability found = row.probe(transport::Asked::automatically);
      not_open_.emplace(row.name, support::Fallback{found.reason, found.detail});
    } else {
      not_open_.emplace(
          row.name, support::Fallback{FallbackReason::left_out, fmt::format("this session was told to use {}", names)});
    }
  }
}

std::optional<std::size_t> Fabrics::find(std::string_view name, std::string_view domain) const {
  for (std::size_t i = 0; i < opened_.size(); ++i) {
    if (opened_[i].fabric->name() == name && opened_[i].fabric->domain() == domain) return i;
  }
  return std::nullopt;
}

support::Fallback Fabrics::why_not_open(const transport::Transport& row) const {
  const auto found = not_open_.find(row.name);
  return found == not_open_.end() ? support::Fallback{} : found->second;
}

transport::SocketNeeds Fabrics::sockets(std::size_t fabric) const {
  transport::SocketNeeds sockets = opened_[fabric].fabric->sockets();
  sockets.count = std::clamp(streams_, sockets.count, std::max(sockets.count, sockets.max_count));
  return sockets;
}

std::vector<wire::FabricOffer> Fabrics::offers() const {
  std::vector<wire::FabricOffer> offers;
  for (const Opened& one : opened_) offers.push_back({std::string(one.fabric->name()), one.fabric->domain()});
  return offers;
}

std::vector<std::string> Fabrics::versions() const {
  std::vector<std::string> versions;
  for (const Opened& one : opened_) versions.push_back(one.fabric->version());
  return versions;
}

}  // namespace shardwire
