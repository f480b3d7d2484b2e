// SPDX-License-Identifier: Apache-2.0
#include "memory/completions.hpp"

#include <deque>
#include <mutex>
#include <utility>

namespace shardwire::memory {

class Completions::Inbox {
 public:
  struct Ended {
    Ticket ticket = 0;
    std::optional<Error> error;
  };

  explicit Inbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void put(Ended ended) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    ended_.push_back(std::move(ended));
    wake_();
  }
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return ended_.size();
  }
  std::optional<Ended> take() {
    const std::lock_guard lock(mutex_);
    if (ended_.empty()) return std::nullopt;
    Ended first = std::move(ended_.front());
    ended_.pop_front();
    return first;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    ended_.clear();
  }

 private:
  mutable std::mutex mutex_;  // guards the following fields and calls of wake_
  std::function<void()> wake_;
  std::deque<Ended> ended_;
  bool closed_ = false;
};

Completions::Completions(std::function<void()> wake) : inbox_(std::make_shared<Inbox>(std::move(wake))) {
}

Completions::~Completions() {
  close();
}

Completions::Ticket Completions::add(Then then) {
  callbacks_.emplace(++last_ticket_, std::move(then));
  return last_ticket_;
}

Completions::Report Completions::report(Ticket ticket) const {
  return [inbox = inbox_, ticket](const std::optional<Error>& error) { inbox->put({ticket, error}); };
}

bool Completions::run(Ticket ticket, const std::exception_ptr& error) {
  const auto found = callbacks_.extract(ticket);
  if (found.empty()) return false;
  found.mapped()(error);
  return true;
}

unsigned Completions::poll() {
  unsigned ran = 0;
  // Later reports have already woken the thread again: they are for the next call.
  for (std::size_t left = inbox_->size(); left > 0; --left) {
    const std::optional<Inbox::Ended> ended = inbox_->take();
    if (!ended) break;
    if (run(ended->ticket, ended->error ? std::make_exception_ptr(*ended->error) : nullptr)) ++ran;
  }
  return ran;
}

void Completions::close() {
  inbox_->close();
}

void Completions::clear() {
  callbacks_.clear();
}

}  // namespace shardwire::memory
