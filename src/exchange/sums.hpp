// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include "exchange/rounds.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// Sums over the restores and rounds of one exchange.
class ExchangeSums {
 public:
  /// `message_budget`: share of each restore's staging.
  explicit ExchangeSums(ByteCount message_budget) : message_budget_(message_budget) {}
  [[nodiscard]] ByteCount message_budget() const { return message_budget_; }

  /// Adds a successful restore, with the bytes that are staged in addition.
  void add(const Restore& restore, const Catalog& catalog, ByteCount staged_bytes);
  void add(const ExchangeRounds::Totals& rounds);
  /// Adds staging without a restore.
  void add_staging(ByteCount staged_bytes);

  [[nodiscard]] bool skipped(const TensorKey& key) const { return skipped_.contains(key); }
  /// The sums so far; the caller fills in the total times.
  ExchangeResult take();

 private:
  ByteCount message_budget_;
  std::set<TensorKey> skipped_;
  std::set<TensorKey> zeroed_;
  ExchangeResult result_;
};

}  // namespace shardwire
