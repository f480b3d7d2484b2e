// SPDX-License-Identifier: Apache-2.0
#include "move/zcopy_source.hpp"

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "wire/payload_header.hpp"

namespace shardwire::move {

namespace {

// Some dozen messages of the maximum number of ranges: the simultaneous requests of a few restores.
constexpr std::size_t max_ranges_of_reader = 1u << 22;

}  // namespace

void ZcopySource::send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest) {
  std::vector<Message> messages;
  messages.reserve(boxes.size());
  for (const SourceBox& source : boxes) {
    const memory::StridedCopy copy(source.box, source.placed, memory::packed(source.box), source.item_bytes);
    if (copy.runs() != 1) {
      throw Error(ErrorCode::invalid_argument, to_string(source.box) + " does not lie in one piece here");
    }
    messages.push_back({{{source.base + copy.source_span().first, copy.bytes(), {}}}});
  }
  if (!digest) return post(request, messages);
  auto post_with = [this, request, messages](const std::vector<Digest128>& digests) mutable {
    for (std::size_t i = 0; i < messages.size(); ++i) messages[i].digest = digests[i];
    post(request, messages);
  };
  digests_.take(std::move(request), std::move(boxes), std::move(post_with));
}

void ZcopySource::send_gathered(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest) {
  const transport::Endpoint* const endpoint = request->endpoint();
  if (endpoint == nullptr) return;
  const std::size_t max_ranges = endpoint->path({}).max_message_ranges;
  std::vector<Message> messages(1);
  auto& ranges = messages.front().ranges;
  for (const SourceBox& source : boxes) {
    const memory::StridedCopy copy(source.box, source.placed, memory::packed(source.box), source.item_bytes);
    if (copy.runs() > max_ranges - ranges.size()) {
      throw Error(ErrorCode::invalid_argument, "a request for one message has more than the " +
                                                   std::to_string(max_ranges) + " ranges that one takes");
    }
    copy.visit_runs([&](ByteCount at, ByteCount) { ranges.push_back({source.base + at, copy.run_bytes(), {}}); });
  }
  messages.front().charge = charge(request->reader(), ranges.size());
  if (!digest) return post(request, messages);
  auto post_with = [this, request, messages = std::move(messages)](const std::vector<Digest128>& digests) mutable {
    messages.front().digest = memory::digest_of(digests);
    post(request, messages);
  };
  digests_.take(std::move(request), std::move(boxes), std::move(post_with));
}

// A request of a few bytes can name very many ranges.
std::shared_ptr<void> ZcopySource::charge(std::uint64_t reader, std::size_t ranges) {
  std::erase_if(ranges_, [](const auto& entry) { return *entry.second == 0; });
  auto& counted = ranges_[reader];
  if (!counted) counted = std::make_shared<std::size_t>(0);
  if (*counted + ranges > max_ranges_of_reader) {
    throw Error(ErrorCode::out_of_resources,
                "this reader asks for more than " + std::to_string(max_ranges_of_reader) + " ranges at once");
  }
  *counted += ranges;
  return {nullptr, [counted, ranges](void*) { *counted -= ranges; }};
}

void ZcopySource::post(const std::shared_ptr<ServedRequest>& request, const std::vector<Message>& messages) {
  try {  // check again: the memory may have gone while digests were taken
    request->check_readable();
  } catch (const Error& error) {
    return request->fail(error);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    transport::Endpoint* const endpoint = request->endpoint();
    if (endpoint == nullptr) return;
    const wire::PayloadHeader header{
        .request = request->number(), .part = static_cast<std::uint32_t>(i), .digest = messages[i].digest};
    const Key key{endpoint, request->number()};
    endpoint->send(wire::EncodedHeader(header).bytes(), messages[i].ranges,
                   [this, key](const transport::Outcome& outcome) { sent(key, outcome); });
    Sending& sending = under_way_[key];
    sending.request = request;
    sending.charge = messages[i].charge;
    ++sending.messages;
    request->begin_reading();
  }
}

void ZcopySource::sent(const Key& key, const transport::Outcome& outcome) {
  const auto found = under_way_.find(key);
  if (found == under_way_.end()) return;  // its endpoint is gone
  Sending& sending = found->second;
  const auto request = sending.request;
  if (outcome && !std::exchange(sending.failed, true)) request->fail(Error(outcome->code, outcome->message));
  if (--sending.messages == 0) under_way_.erase(found);
  request->end_reading();
}

std::set<std::uint64_t> ZcopySource::readers_of(const void* publication) const {
  std::set<std::uint64_t> readers;
  for (const auto& [key, sending] : under_way_) {
    if (sending.request->publication() == publication) readers.insert(sending.request->reader());
  }
  return readers;
}

void ZcopySource::abort_connection(std::unique_ptr<transport::Endpoint> endpoint, const Error* why) {
  const transport::Endpoint* const gone = endpoint.get();
  endpoint.reset();  // completions of operations under way never run
  std::vector<Sending> ended;
  for (auto next = under_way_.lower_bound({gone, 0}); next != under_way_.end() && next->first.first == gone;) {
    ended.push_back(std::move(next->second));
    next = under_way_.erase(next);
  }
  for (const Sending& sending : ended) {
    if (why != nullptr) sending.request->fail(*why);
    for (int message = 0; message < sending.messages; ++message) sending.request->end_reading();
  }
}

}  // namespace shardwire::move
