// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// The fabrics that a session has opened, in the order of the table of transports. Everywhere in a session a fabric is named
/// by its index here.
/// Threads: as Fabric; made once, then constant.
class Fabrics {
 public:
  using LeftOut = std::function<void(const std::string& why)>;

  /// `names`: "auto" for all that are viable and reach other processes, or names separated by commas. With "auto", one that
  /// cannot be opened is left out, and `left_out` is told why.
  /// Errors: throws Error{unsupported} when there is none, or when one that is named is unknown, off or cannot be opened;
  ///         Error{invalid_argument} for a setting of one that makes no sense.
  /// `streams`: to each peer, for fabrics that leave that open.
  Fabrics(std::string_view names, int streams, const LeftOut& left_out);

  [[nodiscard]] std::size_t size() const { return opened_.size(); }
  [[nodiscard]] transport::Fabric& operator[](std::size_t fabric) const { return *opened_[fabric].fabric; }
  [[nodiscard]] const transport::Transport& row(std::size_t fabric) const { return *opened_[fabric].row; }
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name, std::string_view domain) const;
  /// Why a transport of this build is not among them, for people; empty for one that is.
  [[nodiscard]] std::string why_not_open(const transport::Transport& row) const;
  /// Those that an endpoint of the fabric is to live on.
  [[nodiscard]] transport::Sockets sockets(std::size_t fabric) const;
  /// What peers are told.
  [[nodiscard]] std::vector<wire::FabricOffer> offers() const;
  /// Name and loaded version of each.
  [[nodiscard]] std::vector<std::string> versions() const;

 private:
  struct Opened {
    const transport::Transport* row;
    std::unique_ptr<transport::Fabric> fabric;
  };
  std::map<std::string_view, std::string> not_open_;  // transports of this build that are left out, and why
  std::vector<Opened> opened_;
  int streams_;
};

}  // namespace shardwire
