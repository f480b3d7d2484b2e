// SPDX-License-Identifier: Apache-2.0
#include "move/source_digests.hpp"

#include "move/source_reads.hpp"

namespace shardwire::move {

namespace {

constexpr std::size_t max_begun = 2;
constexpr ByteCount max_digest_bytes_at_once = 32u << 20;  // then the next request is served

}  // namespace

void SourceDigests::take(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, Done done) {
  Wanted wanted{.request = std::move(request), .boxes = std::move(boxes), .done = std::move(done)};
  for (const SourceBox& box : wanted.boxes) wanted.bytes += box.bytes();
  take(std::move(wanted));
}

void SourceDigests::take(Wanted wanted) {
  auto& queue = queues_[wanted.request->reader()];
  if (!queue) queue = std::make_shared<Queue>();
  if (wanted.bytes > max_read_here && queue->begun >= max_begun) return queue->waiting.push_back(std::move(wanted));
  const auto begun = std::make_shared<Wanted>(std::move(wanted));  // owners: the jobs and their continuations
  begun->digests.reserve(begun->boxes.size());
  ++queue->begun;
  begun->slot = std::shared_ptr<void>(nullptr, [queue](void*) { --queue->begun; });
  next(begun);
}

// The memory may have gone since the last job, or while the request waited.
void SourceDigests::next(const std::shared_ptr<Wanted>& wanted) {
  wanted->request->check_readable();
  const std::size_t first = wanted->digests.size();
  std::size_t end = first;
  ByteCount bytes = 0;
  bool on_devices = false;
  for (; end < wanted->boxes.size() && bytes < max_digest_bytes_at_once; ++end) {
    bytes += wanted->boxes[end].bytes();
    on_devices = on_devices || wanted->boxes[end].device != memory::on_host;
  }
  read_source(copies_, wanted->request, bytes,
              {.count = end - first,
               .copy =
                   [wanted, first](std::size_t index) {
                     const SourceBox& box = wanted->boxes[first + index];
                     return memory::QueuedCopy{
                         memory::StridedCopy(box.box, box.placed, memory::packed(box.box), box.item_bytes), box.base,
                         nullptr, box.device};
                   },
               .work = memory::CopyWork::digest,
               .on_devices = on_devices},
              [this, wanted](const memory::CopyResult& result) { taken(wanted, result); });
}

void SourceDigests::taken(const std::shared_ptr<Wanted>& wanted, const memory::CopyResult& result) {
  bool goes_on = false;
  answering(*wanted->request, [&] {
    if (result.error) std::rethrow_exception(result.error);
    wanted->digests.insert(wanted->digests.end(), result.digests.begin(), result.digests.end());
    if (wanted->digests.size() == wanted->boxes.size()) return wanted->done(std::move(wanted->digests));
    next(wanted);
    goes_on = true;
  });
  if (goes_on) return;
  wanted->slot.reset();
  take_waiting(wanted->request->reader());
}

void SourceDigests::take_waiting(std::uint64_t reader) {
  const auto found = queues_.find(reader);
  if (found == queues_.end()) return;
  const auto queue = found->second;
  while (!queue->waiting.empty() && queue->begun < max_begun) {
    Wanted next = std::move(queue->waiting.front());
    queue->waiting.pop_front();
    const auto request = next.request;
    answering(*request, [&] { take(std::move(next)); });
  }
}

}  // namespace shardwire::move
