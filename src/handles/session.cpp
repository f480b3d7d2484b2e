// SPDX-License-Identifier: Apache-2.0
#include "shardwire/session.hpp"

#include <fmt/core.h>

#include <utility>

#include "handles/session_state.hpp"
#include "session/surroundings.hpp"
#include "support/handle.hpp"

namespace shardwire {

Session::Session(std::shared_ptr<detail::SessionState> state) : state_(std::move(state)) {
}
Session::~Session() {
  if (state_) state_->stop(std::chrono::steady_clock::now());
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Session Session::join(Bootstrap bootstrap, SessionOptions options) {
  return detail::SessionState::join_in(detail::surroundings_of_process, std::move(bootstrap), options);
}

detail::SessionState& Session::state() const {
  return detail::checked(state_, "session");
}
int Session::rank() const {
  return state().member();
}
int Session::world_size() const {
  return state().world_size();
}
std::vector<std::string> Session::transports() const {
  return state().fabrics->versions();
}
Arena Session::allocate(ByteCount bytes) {
  return allocate(bytes, MemoryKind::host);
}
Arena Session::allocate(ByteCount bytes, MemoryKind kind, int device) {
  return Arena(state().allocate(bytes, kind, device));
}
Registration Session::register_memory(const View& view) {
  return Registration(state().register_memory(view));
}
Publication Session::publish(const Catalog& held, PublishOptions options) {
  return Publication(state().publish(held, options));
}
Restore Session::restore(const Catalog& wanted, RestoreOptions options) {
  return Restore(state().restore(wanted, std::move(options)));
}
ExchangeResult Session::exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options) {
  return state().exchange(held, wanted, options);
}
Exchange Session::start_exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options) {
  return Exchange(state().start_exchange(held, wanted, std::move(options)));
}
std::vector<Bytes> Session::gather(const std::string& name, Bytes value, Duration timeout) {
  return state().gather(name, std::move(value), timeout);
}
void Session::barrier(Duration timeout) {
  state().barrier(timeout);
}
JobLayout Session::gather_layouts(const Catalog& catalog, Duration timeout) {
  return state().gather_layouts(catalog, timeout);
}
std::vector<PeerPath> Session::paths(const std::string& name, Duration timeout) {
  return state().paths(name, timeout);
}
Inventory Session::inventory(const std::string& name, std::optional<std::int64_t> step, Duration timeout) {
  return state().inventory({.from = name, .step = step, .timeout = timeout});
}
Inventory Session::await_step(const std::string& name, std::optional<std::int64_t> step, Duration timeout) {
  return state().inventory({.from = name, .step = step, .until_final = true, .timeout = timeout});
}
SessionUsage Session::usage() const {
  return state().usage();
}
void Session::close(Duration timeout) {
  state().close(timeout);
}

Restore::Restore() = default;
Restore::Restore(std::shared_ptr<detail::RestoreState> state) : state_(std::move(state)) {
}
Restore::Restore(Restore&&) noexcept = default;
Restore& Restore::operator=(Restore&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Restore::~Restore() {
  if (!state_ || state_->inherited() || state_->completion().is_done()) return;
  state_->cancel();
  if (state_->completion().is_done() || state_->end_here()) return;
  state_->completion().wait_for_end();
}
void Restore::on_progress(std::function<void(const Progress&)> callback, Duration interval) {
  detail::checked(state_, "restore").listen(std::move(callback), interval);
}
void Restore::wait() {
  detail::checked(state_, "restore").completion().wait();
}
void Restore::wait_values() {
  detail::checked(state_, "restore").values_ready().wait();
}
bool Restore::values_ready() const {
  return detail::checked(state_, "restore").values_ready().is_done();
}
void Restore::proceed() {
  detail::checked(state_, "restore").require_owner();
  state_->proceed();
}
bool Restore::wait_for(Duration timeout) {
  return detail::checked(state_, "restore").completion().wait_for(timeout);
}
bool Restore::poll() const {
  return detail::checked(state_, "restore").completion().is_done();
}
int Restore::event_descriptor() {
  return detail::checked(state_, "restore").completion().descriptor();
}
void Restore::on_done(std::function<void()> callback) {
  detail::checked(state_, "restore").completion().on_done(std::move(callback));
}
void Restore::cancel() {
  detail::checked(state_, "restore").cancel();
}
void Restore::resume(Duration timeout) {
  detail::checked(state_, "restore").require_owner();
  state_->resume(timeout);
}
const RestoreReport& Restore::report() const {
  return detail::checked(state_, "restore").report();
}
bool Restore::has_value(const TensorKey& key) const {
  return detail::checked(state_, "restore").values().contains(key);
}
const Value& Restore::value(const TensorKey& key) const {
  const auto found = detail::checked(state_, "restore").values().find(key);
  if (found == detail::checked(state_, "restore").values().end()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("no value was restored for {}", to_string(key)));
  }
  return *found->second;
}

Exchange::Exchange() = default;
Exchange::Exchange(std::shared_ptr<detail::ExchangeState> state) : state_(std::move(state)) {
}
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Exchange::~Exchange() {
  if (!state_ || state_->inherited()) return;
  state_->cancel();
  state_->completion().wait_for_end();
}
void Exchange::on_progress(std::function<void(const Progress&)> callback, Duration interval) {
  detail::checked(state_, "exchange").listen(std::move(callback), interval);
}
void Exchange::wait() {
  detail::checked(state_, "exchange").completion().wait();
}
bool Exchange::wait_for(Duration timeout) {
  return detail::checked(state_, "exchange").completion().wait_for(timeout);
}
bool Exchange::poll() const {
  return detail::checked(state_, "exchange").completion().is_done();
}
void Exchange::cancel() {
  detail::checked(state_, "exchange").cancel();
}
int Exchange::event_descriptor() {
  return detail::checked(state_, "exchange").completion().descriptor();
}
void Exchange::on_done(std::function<void()> callback) {
  detail::checked(state_, "exchange").completion().on_done(std::move(callback));
}
const ExchangeResult& Exchange::result() const {
  return detail::checked(state_, "exchange").result();
}

}  // namespace shardwire
