// SPDX-License-Identifier: Apache-2.0
#include "move/straight_source.hpp"

#include "memory/strided_copy.hpp"
#include "wire/payload_header.hpp"

namespace shardwire::move {

void StraightSource::send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest) {
  std::vector<transport::ConstMemory> parts;
  parts.reserve(boxes.size());
  for (const SourceBox& source : boxes) {
    const memory::StridedCopy copy(source.box, source.placed, memory::packed(source.box), source.item_bytes);
    if (copy.runs() != 1) {
      throw Error(ErrorCode::invalid_argument, to_string(source.box) + " does not lie in one piece here");
    }
    parts.push_back({source.base + copy.source_span().first, copy.bytes(), {}});
  }
  if (!digest) return post(request, parts, {});
  auto post_with = [this, request, parts = std::move(parts)](const std::vector<wire::BoxDigest>& digests) {
    post(request, parts, digests);
  };
  digests_.take(std::move(request), std::move(boxes), std::move(post_with));
}

void StraightSource::post(const std::shared_ptr<ServedRequest>& request,
                          const std::vector<transport::ConstMemory>& parts,
                          const std::vector<wire::BoxDigest>& digests) {
  try {  // again: what is read may have gone while digests were taken
    request->check_readable();
  } catch (const Error& error) {
    return request->fail(error);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    transport::Endpoint* const endpoint = request->endpoint();
    if (endpoint == nullptr) return;
    wire::PayloadHeader header{.request = request->number(), .part = static_cast<std::uint32_t>(i)};
    if (!digests.empty()) header.digest = digests[i];
    const Key key{endpoint, request->number()};
    endpoint->send(wire::EncodedHeader(header).bytes(), parts[i],
                   [this, key](const transport::Outcome& outcome) { sent(key, outcome); });
    Sending& sending = under_way_[key];
    sending.request = request;
    ++sending.messages;
    request->begin_reading();
  }
}

void StraightSource::sent(const Key& key, const transport::Outcome& outcome) {
  const auto found = under_way_.find(key);
  if (found == under_way_.end()) return;  // its endpoint is gone
  Sending& sending = found->second;
  const auto request = sending.request;
  if (outcome && !std::exchange(sending.failed, true)) request->fail(Error(outcome->code, outcome->message));
  if (--sending.messages == 0) under_way_.erase(found);
  request->end_reading();
}

std::set<std::uint64_t> StraightSource::readers_of(const void* publication) const {
  std::set<std::uint64_t> readers;
  for (const auto& [key, sending] : under_way_) {
    if (sending.request->publication() == publication) readers.insert(sending.request->reader());
  }
  return readers;
}

void StraightSource::cut_off(std::unique_ptr<transport::Endpoint> endpoint, const Error* why) {
  const transport::Endpoint* const gone = endpoint.get();
  endpoint.reset();  // completions of what was under way never run
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
