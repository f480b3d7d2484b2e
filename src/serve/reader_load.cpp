// SPDX-License-Identifier: Apache-2.0
#include "serve/reader_load.hpp"

#include <fmt/core.h>

#include <utility>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

constexpr std::size_t max_leases = 4096;
constexpr std::size_t max_leased_tensors = 1u << 20;
constexpr std::size_t max_leased_boxes = 1u << 17;
constexpr std::size_t max_requests = 4096;
constexpr std::size_t max_queued_parts = 1u << 18;

}  // namespace

void ReaderLoad::check(const Amount& more) const {
  if (now_.leases + more.leases > max_leases || now_.tensors + more.tensors > max_leased_tensors ||
      now_.boxes + more.boxes > max_leased_boxes) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("this reader holds {} leases on {} tensors and {} boxes, and may hold {} on {} and {}",
                            now_.leases, now_.tensors, now_.boxes, max_leases, max_leased_tensors, max_leased_boxes));
  }
  if (now_.requests + more.requests > max_requests || now_.parts + more.parts > max_queued_parts) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("this reader asks for too much at once: {} requests and {} boxes are the limits",
                            max_requests, max_queued_parts));
  }
}

void ReaderLoad::add(const Amount& more) {
  check(more);
  now_.leases += more.leases;
  now_.tensors += more.tensors;
  now_.boxes += more.boxes;
  now_.requests += more.requests;
  now_.parts += more.parts;
}

void ReaderLoad::remove(const Amount& amount) {
  now_.leases -= amount.leases;
  now_.tensors -= amount.tensors;
  now_.boxes -= amount.boxes;
  now_.requests -= amount.requests;
  now_.parts -= amount.parts;
}

Charge::Charge(std::shared_ptr<ReaderLoad> load, const ReaderLoad::Amount& amount) : amount_(amount) {
  load->add(amount);
  load_ = std::move(load);
}

Charge::~Charge() {
  if (load_) load_->remove(amount_);
}

Charge& Charge::operator=(Charge&& other) noexcept {
  std::swap(load_, other.load_);
  std::swap(amount_, other.amount_);
  return *this;
}

}  // namespace shardwire
