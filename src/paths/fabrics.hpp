// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/transport.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// The fabrics that a session has opened, in the order of the table of transports. A session identifies a fabric by its
/// index here.
/// Threads: as Fabric; made once, then constant.
class Fabrics {
 public:
  using LeftOut = std::function<void(const std::string& why)>;
  struct Opened {
    const transport::Transport* row;
    std::unique_ptr<transport::Fabric> fabric;
  };

  /// `names`: "auto" for all that are viable and reach other processes, or names separated by commas. With "auto", a
  ///          transport that cannot be opened is omitted, and `left_out` receives the reason.
  /// Errors: throws Error{unsupported} if no fabric remains, or if a named one is unknown, off or cannot be opened;
  ///         Error{invalid_argument} for an invalid setting of one.
  /// `streams`: per peer, for fabrics that do not fix the number.
  Fabrics(std::string_view names, int streams, const LeftOut& left_out);
  /// These fabrics, whether or not their rows are in the table. Ownership: borrows the rows.
  explicit Fabrics(std::vector<Opened> opened) : opened_(std::move(opened)) {}

  /// Puts a fabric around each one. Requires: nothing uses them yet.
  void wrap(const std::function<std::unique_ptr<transport::Fabric>(std::unique_ptr<transport::Fabric>)>& around) {
    for (Opened& one : opened_) one.fabric = around(std::move(one.fabric));
  }
  [[nodiscard]] std::size_t size() const { return opened_.size(); }
  [[nodiscard]] transport::Fabric& operator[](std::size_t fabric) const { return *opened_[fabric].fabric; }
  [[nodiscard]] const transport::Transport& row(std::size_t fabric) const { return *opened_[fabric].row; }
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name, std::string_view domain) const;
  /// Why a transport of this build is not open, for people; empty for an open one.
  [[nodiscard]] support::Fallback why_not_open(const transport::Transport& row) const;
  /// The sockets that an endpoint of the fabric needs.
  [[nodiscard]] transport::SocketNeeds sockets(std::size_t fabric) const;
  /// This member's offers to peers.
  [[nodiscard]] std::vector<wire::FabricOffer> offers() const;
  /// Name and loaded version of each.
  [[nodiscard]] std::vector<std::string> versions() const;

 private:
  std::map<std::string_view, support::Fallback> not_open_;  // omitted transports of this build, with reasons
  std::vector<Opened> opened_;
  int streams_ = 1;
};

}  // namespace shardwire
