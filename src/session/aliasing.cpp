// SPDX-License-Identifier: Apache-2.0
#include "session/aliasing.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>

namespace shardwire {

namespace {

struct Range {
  const std::byte* first = nullptr;
  const std::byte* past = nullptr;
  bool wanted = false;
  std::string what;
};

void add(std::vector<Range>& ranges, const void* data, ByteCount bytes, bool wanted, const TensorKey& key) {
  if (bytes == 0) return;
  const auto* first = static_cast<const std::byte*>(data);
  ranges.push_back({first, first + bytes, wanted, (wanted ? "wanted " : "published ") + to_string(key)});
}

}  // namespace

void check_aliasing(const Catalog& wanted, const std::vector<std::shared_ptr<detail::PublicationState>>& published) {
  std::vector<Range> ranges;
  for (const Catalog::Entry& entry : wanted.entries()) {
    add(ranges, entry.view.data, local_bytes(entry, wanted.place()), true, entry.spec.key);
  }
  for (const Catalog::ValueEntry& entry : wanted.values()) {
    if (entry.destination == nullptr) continue;
    add(ranges, entry.destination, std::get<TensorValue>(entry.value).bytes.size(), true, entry.key);
  }
  for (const auto& publication : published) {
    if (publication->snapshot) continue;
    for (std::size_t i = 0; i < publication->tensors.size(); ++i) {
      const auto& tensor = publication->tensors[i];
      add(ranges, tensor.data, tensor.bytes, false, publication->described.manifest->tensors[i].spec.key);
    }
  }
  // Published ranges may overlap one another; what is wanted may overlap nothing. In order of their starts, a wanted range
  // has to clear the furthest-reaching range before it, and every range the furthest-reaching wanted one.
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  const Range* furthest = nullptr;
  const Range* furthest_wanted = nullptr;
  for (const Range& now : ranges) {
    const Range* other = now.wanted ? furthest : furthest_wanted;
    if (other != nullptr && now.first < other->past) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("memory of {} overlaps memory of {}", now.what, other->what));
    }
    if (furthest == nullptr || now.past > furthest->past) furthest = &now;
    if (now.wanted && (furthest_wanted == nullptr || now.past > furthest_wanted->past)) furthest_wanted = &now;
  }
}

}  // namespace shardwire
