// SPDX-License-Identifier: Apache-2.0
#include "move/source_digests.hpp"

#include "memory/digest.hpp"
#include "move/source_reads.hpp"

namespace shardwire::move {

namespace {

constexpr std::size_t max_begun = 2;
constexpr ByteCount max_bytes_at_once = 32u << 20;  // then it is others' turn

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
  const auto begun = std::make_shared<Wanted>(std::move(wanted));  // owners: the jobs and what follows them
  begun->digests.reserve(begun->boxes.size());
  ++queue->begun;
  begun->slot = std::shared_ptr<void>(nullptr, [queue](void*) { --queue->begun; });
  next(begun);
}

// What is read may have gone since the last job, or while the request waited.
void SourceDigests::next(const std::shared_ptr<Wanted>& wanted) {
  wanted->request->check_readable();
  const std::size_t first = wanted->digests.size();
  std::size_t end = first;
  ByteCount bytes = 0;
  while (end < wanted->boxes.size() && bytes < max_bytes_at_once) bytes += wanted->boxes[end++].bytes();
  read_source(
      copier_, wanted->request, bytes,
      [wanted, first, end] {
        for (std::size_t i = first; i < end; ++i) {
          const SourceBox& source = wanted->boxes[i];
          const auto digest = memory::digest_box(source.box, source.placed, source.base, source.item_bytes);
          wanted->digests.push_back({digest.low, digest.high});
        }
      },
      [this, wanted, end] { taken(wanted, end); });
}

void SourceDigests::taken(const std::shared_ptr<Wanted>& wanted, std::size_t end) {
  try {
    if (wanted->digests.size() != end) throw Error(ErrorCode::internal, "a digest could not be taken");
    if (end < wanted->boxes.size()) return next(wanted);
    wanted->done(std::move(wanted->digests));
  } catch (const Error& error) {
    wanted->request->fail(error);
  } catch (const std::exception& error) {  // no memory
    wanted->request->fail(Error(ErrorCode::out_of_resources, error.what()));
  }
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
    try {
      take(std::move(next));
    } catch (const Error& error) {
      request->fail(error);
    }
  }
}

}  // namespace shardwire::move
