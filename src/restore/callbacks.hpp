// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shardwire/error.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// Numbers the requests of one object, and counts those without an answer.
struct RequestCount {
  std::uint64_t next = 0;  ///< number
  int unanswered = 0;
  /// Grows with each answer.
  [[nodiscard]] std::uint64_t answered() const { return next - static_cast<std::uint64_t>(unanswered); }
};

/// Wraps the callbacks of one object, so that they do nothing once it is gone or has called end(), and so that their
/// exceptions reach the object instead of the loop.
/// Threads: loop thread only.
class Callbacks {
 public:
  using Failed = std::function<void(const std::exception_ptr&)>;

  explicit Callbacks(Failed failed) : failed_(std::move(failed)) {}
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  /// Disables all callbacks.
  void end() { alive_.reset(); }
  /// Disables callbacks made before; those made from now on run.
  void restart() { alive_ = std::make_shared<bool>(true); }

  [[nodiscard]] bool ended() const { return alive_ == nullptr; }
  /// Expires with end().
  [[nodiscard]] std::weak_ptr<bool> token() const { return alive_; }

  template <typename Body>
  void run(Body body) {
    std::exception_ptr error;
    try {
      body();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    if (error) failed_(error);
  }
  template <typename Body>
  auto wrap(Body body) {
    return [this, alive = std::weak_ptr<bool>(alive_), body = std::move(body)](auto&&... arguments) mutable {
      if (alive.expired()) return;
      this->run([&] { body(std::forward<decltype(arguments)>(arguments)...); });
    };
  }
  /// As wrap(), for an answer that counts as `unanswered` until it comes. Ownership: borrows the count until end().
  template <typename Body>
  auto count(int& unanswered, Body body) {
    ++unanswered;
    return wrap([&unanswered, body = std::move(body)](auto&&... arguments) mutable {
      --unanswered;
      body(std::forward<decltype(arguments)>(arguments)...);
    });
  }

 private:
  Failed failed_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this; callbacks hold weak ones
};

/// The expected reply of a source. Errors: throws the error of a wire::Failure, and Error{transport_failed} for another
/// kind of message; both name the source.
template <typename Reply>
Reply& expect(wire::Message& message, Rank source) {
  if (auto* reply = std::get_if<Reply>(&message)) return *reply;
  const std::vector<Rank> ranks{source};
  const std::string name = "source rank " + std::to_string(to_int(source)) + " ";
  if (const auto* failure = std::get_if<wire::Failure>(&message)) {
    throw Error(failure->code, name + "refused: " + failure->message, ranks);
  }
  throw Error(ErrorCode::transport_failed, name + "sent another reply than was asked for", ranks);
}

}  // namespace shardwire::restore
