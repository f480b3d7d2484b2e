// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "runtime/completion.hpp"
#include "shardwire/session.hpp"
#include "support/handle.hpp"

namespace shardwire {

Retirement::Retirement() = default;
Retirement::~Retirement() = default;
Retirement::Retirement(Retirement&&) noexcept = default;
Retirement& Retirement::operator=(Retirement&&) noexcept = default;
Retirement::Retirement(std::shared_ptr<detail::Completion> completion) : completion_(std::move(completion)) {
}
void Retirement::wait() {
  detail::checked(completion_, "retirement").wait();
}
bool Retirement::wait_for(Duration timeout) {
  return detail::checked(completion_, "retirement").wait_for(timeout);
}
bool Retirement::poll() const {
  return detail::checked(completion_, "retirement").is_done();
}
int Retirement::event_descriptor() {
  return detail::checked(completion_, "retirement").descriptor();
}
void Retirement::on_done(std::function<void()> callback) {
  detail::checked(completion_, "retirement").on_done(std::move(callback));
}

}  // namespace shardwire
