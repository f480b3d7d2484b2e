// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include "session/exchange/rounds.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// What the restores and rounds of one exchange come to, together.
class ExchangeSums {
 public:
  /// `message_budget`: of the staging of each restore.
  explicit ExchangeSums(ByteCount message_budget) : message_budget_(message_budget) {}
  [[nodiscard]] ByteCount message_budget() const { return message_budget_; }

  /// Of a restore that has ended well, with what waits in staging beside it.
  void add(const Restore& restore, const Catalog& catalog, ByteCount staged_bytes);
  void add(const ExchangeRounds::Totals& rounds);
  /// Without a restore.
  void add_staging(ByteCount staged_bytes);

  [[nodiscard]] bool skipped(const TensorKey& key) const { return skipped_.contains(key); }
  /// All so far; times of the whole are to be filled in.
  ExchangeResult take();

 private:
  ByteCount message_budget_;
  std::set<TensorKey> skipped_;
  std::set<TensorKey> zeroed_;
  ExchangeResult result_;
};

}  // namespace shardwire
