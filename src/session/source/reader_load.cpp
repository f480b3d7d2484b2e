// SPDX-License-Identifier: Apache-2.0
#include "session/source/reader_load.hpp"

#include <fmt/core.h>

namespace shardwire {

namespace {

constexpr std::size_t max_leases = 4096;
constexpr std::size_t max_leased_tensors = 1u << 20;
constexpr std::size_t max_leased_boxes = 1u << 17;
constexpr std::size_t max_requests = 4096;
constexpr std::size_t max_queued_parts = 1u << 18;

}  // namespace

void ReaderLoad::check_lease(std::size_t tensors, std::size_t boxes) const {
  if (leases_ < max_leases && tensors_ + tensors <= max_leased_tensors && boxes_ + boxes <= max_leased_boxes) return;
  throw Error(ErrorCode::out_of_resources,
              fmt::format("this reader holds {} leases on {} tensors and {} boxes, and may hold {} on {} and {}",
                          leases_, tensors_, boxes_, max_leases, max_leased_tensors, max_leased_boxes));
}

void ReaderLoad::add_lease(const detail::Lease& lease) {
  check_lease(lease.tensors.size(), lease.boxes);
  ++leases_;
  tensors_ += lease.tensors.size();
  boxes_ += lease.boxes;
}

void ReaderLoad::remove_lease(const detail::Lease& lease) {
  --leases_;
  tensors_ -= lease.tensors.size();
  boxes_ -= lease.boxes;
}

Charge::Charge(std::shared_ptr<ReaderLoad> load, std::size_t parts) : load_(std::move(load)), parts_(parts) {
  if (load_->requests_ >= max_requests || load_->parts_ + parts_ > max_queued_parts) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("this reader asks for too much at once: {} requests and {} boxes are the limits",
                            max_requests, max_queued_parts));
  }
  ++load_->requests_;
  load_->parts_ += parts_;
}

Charge::~Charge() {
  --load_->requests_;
  load_->parts_ -= parts_;
}

}  // namespace shardwire
