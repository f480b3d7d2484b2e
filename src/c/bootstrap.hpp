// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "shardwire/c/bootstrap.h"
#include "shardwire/key_value_store.hpp"

namespace shardwire::c_api {

/// The answer of a caller's get() during one call.
class StoreAnswer {
 public:
  void set(Bytes value) { value_ = std::move(value); }
  std::optional<Bytes> take() { return std::move(value_); }

 private:
  std::optional<Bytes> value_;
};

/// The caller's store as the library's.
/// Errors: throws Error{transport_failed} naming the function that failed.
class CallersStore final : public KeyValueStore {
 public:
  explicit CallersStore(const shardwire_store& store) : store_(store) {}
  ~CallersStore() override;
  CallersStore(const CallersStore&) = delete;
  CallersStore& operator=(const CallersStore&) = delete;

  void take_over() { taken_ = true; }  // release() is called from now on
  void put(const std::string& key, const Bytes& value) override;
  void put_within(const std::string& key, const Bytes& value, std::chrono::nanoseconds timeout) override;
  std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) override;

 private:
  shardwire_store store_;
  bool taken_ = false;
};

}  // namespace shardwire::c_api
