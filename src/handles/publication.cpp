// SPDX-License-Identifier: Apache-2.0
#include "serve/publication.hpp"

#include <utility>

#include "handles/session_state.hpp"
#include "support/handle.hpp"

namespace shardwire {

namespace {

std::shared_ptr<detail::Completion> already_ended() {
  auto completion = std::make_shared<detail::Completion>(Interruption());
  completion->finish(nullptr);
  return completion;
}

}  // namespace

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

Publication::Publication() = default;
Publication::Publication(Publication&&) noexcept = default;
Publication& Publication::operator=(Publication&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Publication::Publication(std::shared_ptr<detail::PublicationState> state) : state_(std::move(state)) {
}
Publication::~Publication() {
  const auto session = state_ ? state_->session.lock() : nullptr;
  if (!session) return;
  if (const auto retirement = session->retire(state_, Duration::zero())) session->wait_for_end(*retirement);
}

void Publication::retire(Duration timeout) {
  const auto session = detail::checked(state_, "publication").session.lock();
  if (!session) return;
  if (const auto retirement = session->retire(state_, timeout)) session->wait(state_, *retirement);
}

Retirement Publication::start_retire(Duration timeout) {
  const auto session = detail::checked(state_, "publication").session.lock();
  auto retirement = session ? session->retire(state_, timeout) : nullptr;
  return Retirement(retirement ? std::move(retirement) : already_ended());
}

void Publication::update(const Catalog& held, std::int64_t step, Snapshot snapshot, Duration timeout) {
  const auto session = detail::checked(state_, "publication").session.lock();
  if (!session) throw Error(ErrorCode::invalid_argument, "the session is closed");
  const auto old = state_;
  const auto retirement = session->replace(old, {held, step, snapshot, timeout}, state_);
  session->wait(old, *retirement);
}

}  // namespace shardwire
