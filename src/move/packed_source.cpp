// SPDX-License-Identifier: Apache-2.0
#include "move/packed_source.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "move/source_reads.hpp"
#include "wire/payload_header.hpp"

namespace shardwire::move {

namespace {

// Several slots even within a small budget: readers that hang keep some of them.
ByteCount slot_bytes_within(ByteCount budget_bytes, ByteCount slot_bytes) {
  constexpr ByteCount enough_slots = 4;
  constexpr ByteCount least = 64u << 10;  // below that, messages cost more than their contents
  return std::min(slot_bytes, std::max(budget_bytes / enough_slots, least));
}

}  // namespace

/// One message, from its slot to its arrival.
struct PackedSource::Job {
  std::shared_ptr<ServedRequest> request;  // owners: this, and the copy
  Slot slot;
  std::shared_ptr<std::size_t> slots;  // of the reader; owners: see slots_
  std::vector<SourceBox> boxes;
  ByteCount bytes = 0;

  Job(Wanted wanted, Slot held, std::shared_ptr<std::size_t> of_reader)
      : request(std::move(wanted.request)),
        slot(std::move(held)),
        slots(std::move(of_reader)),
        boxes(std::move(wanted.boxes)),
        bytes(wanted.bytes) {
    ++*slots;
  }
  ~Job() { give_back(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void give_back() {
    slot = {};
    if (const auto count = std::exchange(slots, nullptr)) --*count;
  }
};

PackedSource::PackedSource(memory::CopyQueue& copies, ByteCount budget_bytes, ByteCount slot_bytes)
    : copies_(copies), pool_(budget_bytes, slot_bytes_within(budget_bytes, slot_bytes)) {
}

void PackedSource::send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest) {
  Wanted wanted{.request = std::move(request), .boxes = std::move(boxes), .digest = digest};
  for (const SourceBox& box : wanted.boxes) {
    wanted.bytes += box.bytes();
    wanted.on_device = wanted.on_device || box.device != memory::on_host;
  }
  if (wanted.bytes > pool_.slot_bytes()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a request for {} bytes is larger than a slot of {}", wanted.bytes, pool_.slot_bytes()));
  }
  queue_.push_back(std::move(wanted));
  pump();
}

void PackedSource::reader_gone(std::uint64_t reader) {
  std::erase_if(queue_, [&](const Wanted& wanted) { return wanted.request->reader() == reader; });
  slots_.erase(reader);
}

void PackedSource::pump() {
  while (pool_.free_slots() > 0) {
    Slot slot;
    auto next = queue_.end();
    try {
      next = std::find_if(queue_.begin(), queue_.end(), [&](const Wanted& wanted) {
        const auto held = slots_.find(wanted.request->reader());
        if (held != slots_.end() && *held->second >= pool_.free_slots()) return false;
        slot = wanted.on_device ? acquire_pinned() : pool_.acquire();
        return static_cast<bool>(slot);
      });
    } catch (const std::exception&) {  // no thread for it
      fail_next_on_device(std::current_exception());
      continue;
    }
    if (next == queue_.end()) return;
    Wanted wanted = std::move(*next);
    queue_.erase(next);
    pack(std::move(wanted), std::move(slot));
  }
}

Slot PackedSource::acquire_pinned() {
  return pool_.acquire_pinned(copies_, [this](const std::exception_ptr& error) {
    if (error) fail_next_on_device(error);
    pump();
  });
}

// The request that needed the slot, or another that would have used it.
void PackedSource::fail_next_on_device(const std::exception_ptr& error) {
  const auto next = std::ranges::find_if(queue_, &Wanted::on_device);
  if (next == queue_.end()) return;
  const auto request = next->request;
  queue_.erase(next);
  answering(*request, [&] { std::rethrow_exception(error); });
}

void PackedSource::pack(Wanted wanted, Slot slot) {
  try {  // check again: the memory may have gone while the request waited
    wanted.request->check_readable();
  } catch (const Error& error) {
    return wanted.request->fail(error);
  }
  auto& slots = slots_[wanted.request->reader()];
  if (!slots) slots = std::make_shared<std::size_t>(0);
  const auto digest = wanted.digest;
  const bool on_device = wanted.on_device;
  const auto job =
      std::make_shared<Job>(std::move(wanted), std::move(slot), slots);  // owners: the copy and its continuation
  auto copy = [job, to = job->slot.bytes().data()](std::size_t index) mutable {
    const SourceBox& box = job->boxes[index];
    std::byte* const packed = std::exchange(to, to + box.bytes());
    return memory::QueuedCopy{memory::StridedCopy(box.box, box.placed, memory::packed(box.box), box.item_bytes),
                              box.base, packed, box.device, job->slot.place()};
  };
  read_source(copies_, job->request, job->bytes,
              {.count = job->boxes.size(),
               .copy = std::move(copy),
               .work = digest ? memory::CopyWork::copy_and_digest : memory::CopyWork::copy,
               .on_devices = on_device},
              [this, job](const memory::CopyResult& result) { packed(job, result); });
}

void PackedSource::packed(const std::shared_ptr<Job>& job, const memory::CopyResult& result) {
  if (result.error) {
    job->give_back();
    pump();
    std::rethrow_exception(result.error);
  }
  transport::Endpoint* const endpoint = job->request->endpoint();
  if (endpoint == nullptr) {  // gone meanwhile: its slot goes to the next request
    job->give_back();
    return pump();
  }
  wire::PayloadHeader header{.request = job->request->number(), .part = 0};
  if (!result.digests.empty()) header.digest = memory::digest_of(result.digests);
  endpoint->send(wire::EncodedHeader(header).bytes(),
                 transport::ConstMemory(transport::host_memory(job->slot.bytes())).part(0, job->bytes),
                 [this, job](const transport::Outcome& outcome) {
                   job->give_back();
                   if (outcome) job->request->fail(Error(outcome->code, outcome->message));
                   pump();
                 });
}

}  // namespace shardwire::move
