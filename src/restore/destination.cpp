// SPDX-License-Identifier: Apache-2.0
#include "restore/destination.hpp"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "geometry/by_value.hpp"
#include "memory/strided_copy.hpp"

namespace shardwire::restore {

namespace {

constexpr std::array<std::byte, 16> zeros{};  // of the largest element

void fill_zeros(const PlacedBox& placed, std::byte* local, ByteCount item_bytes) {
  const memory::StridedCopy rows(placed.box, memory::packed(placed.box), placed, item_bytes);
  rows.visit_runs([&](ByteCount, ByteCount at) { std::memset(local + at, 0, rows.run_bytes()); });
}

}  // namespace

void DestinationEvents::await(const Catalog& catalog, const TensorPlaces& places) {
  const auto events = events_of(catalog, places);
  if (events.empty()) return;
  ready_ = false;
  lent_ = std::make_shared<memory::LentEvents>(events);
  copies_.when_ready(lent_, callbacks_.wrap([this](const std::exception_ptr& error) {
    if (error) std::rethrow_exception(error);
    ready_ = true;
    if (const auto then = std::exchange(then_, nullptr)) then();
  }));
}

void DestinationEvents::when_ready(std::function<void()> then) {
  if (ready_) return then();
  then_ = std::move(then);
}

void DestinationEvents::record(const RestoreOptions& options, std::function<void()> done) {
  const auto events = done_events_of(options);
  if (events.empty()) return done();
  std::set<int> devices;
  for (const memory::ReadyEvent& event : events) devices.insert(event.device);
  done_ = std::make_shared<memory::LentEvents>(events);
  recording_ = devices.size();
  for (const int device : devices) {
    copies_.record(done_, device, callbacks_.wrap([this, done](const std::exception_ptr& error) {
      if (error) std::rethrow_exception(error);
      if (--recording_ == 0) done();
    }));
  }
}

void DestinationEvents::take_back() {
  callbacks_.end();
  for (const auto& events : {lent_, done_}) {
    if (events) events->take_back();
  }
}

void Commit::start(const std::map<TensorKey, SharedValue>& values, const std::vector<TensorId>& zeroed) {
  ++writing_;  // keeps the count above zero until all jobs have started
  write_values(values);
  for (const TensorId id : zeroed) zero(to_index(id));
  wrote(nullptr);
}

void Commit::write_values(const std::map<TensorKey, SharedValue>& values) {
  const Catalog& catalog = destination_.catalog;
  std::vector<memory::QueuedCopy> copies;
  for (std::size_t i = 0; i < catalog.entries().size(); ++i) {
    const Catalog::Entry& entry = catalog.entries()[i];
    if (!travels_by_value(entry.spec)) continue;
    const auto found = values.find(entry.spec.key);
    if (found == values.end()) continue;  // skipped, or not wanted here
    const Bytes& bytes = std::get<TensorValue>(*found->second).bytes;
    std::byte* const element = element_of(entry, catalog.layout_rank(), destination_.placed);
    const int device = device_of(destination_.places, i);
    if (device == memory::on_host) {
      std::memcpy(element, bytes.data(), bytes.size());
    } else {
      copies.push_back(copy_of_bytes(bytes.data(), memory::on_host, element, device, bytes.size()));
    }
  }
  if (copies.empty()) return;
  ++writing_;
  context_.copies.submit(on_devices(std::move(copies)),
                         [this, alive = std::weak_ptr<bool>(alive_)](const memory::CopyResult& result) {
                           if (!alive.expired()) wrote(result.error);
                         });
}

// Zeros this rank's boxes of a tensor that no source has.
void Commit::zero(std::size_t index) {
  const Catalog& catalog = destination_.catalog;
  const TensorLayout& tensor = destination_.manifest.tensors[index];
  const Catalog::Entry& entry = catalog.entries()[index];
  const ByteCount item_bytes = item_size(tensor.spec.dtype);
  const PlacedBoxes& boxes =
      destination_.placed.of(tensor.layout, tensor.spec.shape, catalog.layout_rank(), entry.view.strides);
  auto* const data = static_cast<std::byte*>(entry.view.data);
  const int device = device_of(destination_.places, index);
  ++writing_;
  if (device != memory::on_host) {
    std::vector<memory::QueuedCopy> copies;
    for (const PlacedBox& placed : boxes.all()) {
      const PlacedBox one_element{placed.box, 0, Extents::filled(placed.box.dims(), 0)};
      copies.push_back({memory::StridedCopy(placed.box, one_element, placed, item_bytes), zeros.data(), data,
                        memory::on_host, device});
    }
    context_.copies.submit(on_devices(std::move(copies)),
                           [this, alive = std::weak_ptr<bool>(alive_)](const memory::CopyResult& result) {
                             if (!alive.expired()) wrote(result.error);
                           });
    return;
  }
  context_.copier.submit(
      [boxes = boxes.all(), data, item_bytes] {
        for (const PlacedBox& placed : boxes) fill_zeros(placed, data, item_bytes);
      },
      [this, alive = std::weak_ptr<bool>(alive_)](const std::exception_ptr& error) {
        if (!alive.expired()) wrote(error);
      });
}

void Commit::wrote(const std::exception_ptr& error) {
  --writing_;
  if (error || writing_ == 0) done_(error);
}

}  // namespace shardwire::restore
