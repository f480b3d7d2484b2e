// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "restore/descriptions.hpp"
#include "restore/question.hpp"
#include "shardwire/inventory.hpp"

namespace shardwire::restore {

/// Session::inventory() and Session::await_step() on the loop: follows a name's roster and fetches the descriptions of
/// its publications.
/// Threads: loop thread only.
class InventoryTask final : public Question {
 public:
  struct Request {
    std::string from;
    std::optional<std::int64_t> step{};  ///< empty: the newest complete one, else the newest
    bool until_final = false;            ///< wait for absent ranks while they can still appear
    Duration timeout{};
  };
  using Done = std::function<void(Inventory, const std::exception_ptr&)>;

  /// `done` runs once.
  InventoryTask(const Context& context, Request request, Done done);

 private:
  using Records = Descriptions::Records;

  [[nodiscard]] Records chosen(const Records& all) const;
  [[nodiscard]] std::vector<int> awaited(const Records& all, std::int64_t step, int ranks) const;
  [[nodiscard]] Inventory inventory_of(const Records& all) const;
  [[nodiscard]] std::vector<int> undescribed() const;
  void look() override;
  void fail(const std::exception_ptr& error) override { end({}, error); }
  [[nodiscard]] bool answered() const override { return !done_; }
  void require_possible(const Inventory& inventory, const Records& all) const;
  void timed_out() override;
  void end(Inventory inventory, const std::exception_ptr& error);

  Request request_;
  Done done_;  // empty once it ran
  Descriptions descriptions_;
};

}  // namespace shardwire::restore
