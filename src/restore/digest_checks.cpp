// SPDX-License-Identifier: Apache-2.0
#include "restore/digest_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace shardwire::restore {

namespace {

constexpr std::size_t max_parts_per_check = 1024;
constexpr ByteCount max_bytes_per_check = 64u << 20;

std::vector<wire::RequestedBox> boxes_of(std::span<const move::TransferPart> parts) {
  std::vector<wire::RequestedBox> boxes;
  boxes.reserve(parts.size());
  for (const move::TransferPart& part : parts) boxes.push_back({part.transfer->held_tensor, part.box});
  return boxes;
}

}  // namespace

Error differing_parts(std::span<const move::TransferPart> parts, const Planning& planning, const Manifest& manifest,
                      Rank target, Rank source) {
  std::vector<Gap> gaps;
  for (const move::TransferPart& part : parts) {
    gaps.push_back(gap_of(planning, manifest, part.transfer->piece, part.box, target));
  }
  const Gap& first = gaps.front();
  return {ErrorCode::transport_failed,
          fmt::format("{} boxes differ from their source after the move, the first is {}:{} {} from source rank {}",
                      gaps.size(), first.fqn, first.state, to_string(first.box), to_int(source)),
          gaps,
          {source}};
}

void DigestChecks::add(const move::TransferPart& part, const Digest128& digest) {
  auto& checks = by_source_[part.transfer->peer];
  const bool full =
      checks.empty() || checks.back().parts.size() >= max_parts_per_check || checks.back().bytes >= max_bytes_per_check;
  Check& check = full ? checks.emplace_back() : checks.back();
  check.parts.push_back(part);
  check.digests.push_back(digest);
  check.bytes += part.bytes();
}

void DigestChecks::ask(std::span<const std::unique_ptr<Source>> sources, Differ differ, std::function<void()> done) {
  done_ = std::move(done);
  due_.assign(by_source_.size() + 1, 0);
  due_.back() = 1;  // this call
  for (std::size_t i = 0; i < by_source_.size(); ++i) due_[i] = by_source_[i].size();
  for (std::size_t i = 0; i < by_source_.size(); ++i) {
    for (Check& one : std::exchange(by_source_[i], {})) {
      const auto check = std::make_shared<Check>(std::move(one));  // owner: the answer's callback
      sources[i]->requests().ask_for_digests(
          boxes_of(check->parts),
          [this, i, check, differ](const std::vector<Digest128>& theirs) {
            if (theirs.size() != check->parts.size()) {
              throw Error(ErrorCode::transport_failed, "a source sent another number of digests than asked");
            }
            std::vector<move::TransferPart> wrong;
            for (std::size_t part = 0; part < theirs.size(); ++part) {
              if (check->digests[part] != theirs[part]) wrong.push_back(check->parts[part]);
            }
            if (!wrong.empty()) differ(wrong, {});
            answered(i);
          },
          [this, i, check, differ](const std::vector<wire::RequestedBox>& blocks) {
            differ(check->parts, blocks);
            answered(i);
          });
    }
  }
  answered(by_source_.size());
}

void DigestChecks::forget(std::size_t source) {
  by_source_[source].clear();
  if (due_.empty() || due_[source] == 0) return;
  due_[source] = 1;
  answered(source);
}

void DigestChecks::answered(std::size_t source) {
  --due_[source];
  const bool all = std::ranges::all_of(due_, [](std::size_t due) { return due == 0; });
  if (all && done_) std::exchange(done_, nullptr)();
}

}  // namespace shardwire::restore
