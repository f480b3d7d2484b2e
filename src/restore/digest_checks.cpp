// SPDX-License-Identifier: Apache-2.0
#include "restore/digest_checks.hpp"

#include <fmt/core.h>

#include <utility>

#include "move/messages.hpp"

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

void DigestChecks::add(const move::TransferPart& part, const memory::Digest128& digest) {
  auto& checks = by_source_[part.transfer->peer];
  const bool full =
      checks.empty() || checks.back().parts.size() >= max_parts_per_check || checks.back().bytes >= max_bytes_per_check;
  Check& check = full ? checks.emplace_back() : checks.back();
  check.parts.push_back(part);
  check.digests.push_back(digest);
  check.bytes += part.bytes();
}

void DigestChecks::ask(std::span<const std::unique_ptr<Source>> sources, Differ differ, std::function<void()> done) {
  // Owners: this call and the callbacks.
  const auto due = std::make_shared<std::size_t>(1);
  const auto answered = [due, done = std::move(done)] {
    if (--*due == 0) done();
  };
  for (std::size_t i = 0; i < by_source_.size(); ++i) {
    for (Check& one : std::exchange(by_source_[i], {})) {
      const auto check = std::make_shared<Check>(std::move(one));  // owner: the answer's callback
      ++*due;
      sources[i]->requests().ask_for_digests(
          boxes_of(check->parts), [check, differ, answered](const std::vector<wire::BoxDigest>& theirs) {
            if (theirs.size() != check->parts.size()) {
              throw Error(ErrorCode::transport_failed, "a source sent another number of digests than asked");
            }
            std::vector<move::TransferPart> wrong;
            for (std::size_t part = 0; part < theirs.size(); ++part) {
              if (!move::same(check->digests[part], theirs[part])) wrong.push_back(check->parts[part]);
            }
            if (!wrong.empty()) differ(wrong);
            answered();
          });
    }
  }
  answered();
}

}  // namespace shardwire::restore
