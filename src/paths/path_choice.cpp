// SPDX-License-Identifier: Apache-2.0
#include "paths/path_choice.hpp"

#include <algorithm>
#include <utility>

#include "support/removable.hpp"

namespace shardwire {

int potential_path(const transport::Preference& preference) {
  int best = no_path;
  for (const int rank : {preference.map, preference.read, preference.message}) {
    if (rank != 0) best = std::min(best, rank);
  }
  return best;
}

FabricTable table_of(const Fabrics& fabrics) {
  FabricTable table;
  for (std::size_t i = 0; i < fabrics.size(); ++i) {
    const transport::Transport& row = fabrics.row(i);
    table.open.push_back({{std::string(fabrics[i].name()), fabrics[i].domain()}, row.reach, row.preference});
  }
  for (const transport::Transport& row : transport::registered()) {
    FabricTable::Row entry{std::string(row.name), row.reach, row.preference};
    for (std::size_t i = 0; i < fabrics.size(); ++i) {
      if (fabrics.row(i).name == row.name) entry.open = i;
    }
    // A transport between threads of one process is opened by name only.
    if (!entry.open && row.reach != Reach::process) entry.why_not_open = fabrics.why_not_open(row);
    table.rows.push_back(std::move(entry));
  }
  return table;
}

std::string to_text(std::span<const RejectedPath> rejected) {
  std::string text;
  for (const RejectedPath& one : rejected) {
    if (!text.empty()) text += "; ";
    if (!one.fabric.empty()) text += one.fabric + ": ";
    text += one.why.detail;
  }
  return text;
}

support::Fallback in_one(std::span<const RejectedPath> rejected) {
  const auto removable = [](const RejectedPath& one) { return support::is_removable(one.why.reason); };
  if (rejected.empty()) return {};
  const auto found = std::ranges::find_if(rejected, removable);
  return {(found == rejected.end() ? rejected.begin() : found)->why.reason, to_text(rejected)};
}

std::vector<std::size_t> common_fabrics(std::span<const FabricTraits> own, std::span<const wire::FabricOffer> theirs,
                                        bool same_host) {
  std::vector<std::size_t> common;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const bool reaches = own[i].reach != Reach::host || same_host;
    if (reaches && std::ranges::find(theirs, own[i].offer) != theirs.end()) common.push_back(i);
  }
  std::ranges::stable_sort(common, {}, [&](std::size_t fabric) { return potential_path(own[fabric].preference); });
  return common;
}

std::optional<transport::MemoryPlace> place_of(const wire::RegionHandle& handle) {
  switch (handle.memory_kind) {
    case wire::RegionHandle::host: return transport::MemoryPlace{};
    case wire::RegionHandle::cuda: return transport::MemoryPlace{MemoryKind::cuda, handle.device};
    default: return std::nullopt;
  }
}

wire::RegionHandle handle_of(const transport::Memory& memory) {
  const bool cuda = memory.place.kind == MemoryKind::cuda;
  return {memory.bytes,
          {},
          cuda ? wire::RegionHandle::cuda : wire::RegionHandle::host,
          static_cast<std::int16_t>(memory.place.device)};
}

bool reads_directly(const transport::Path& path, const transport::MemoryPlace& place) {
  return path.read && (place.kind == MemoryKind::host || path.gpu_direct);
}

RegionAccess access_to(const transport::Path& path, const transport::MemoryPlace& place,
                       const transport::RemoteRegion* region) {
  return {.mapped = path.map && region != nullptr && !region->mapped().empty(),
          .readable = reads_directly(path, place) && region != nullptr,
          .message = path.message};
}

RegionAccess access_into(RegionAccess access, bool loads, bool reads) {
  access.mapped = access.mapped && loads;
  access.readable = access.readable && reads;
  return access;
}

int best_path(int so_far, const transport::Preference& preference, const RegionAccess& access) {
  const auto better = [&](bool possible, int rank) {
    if (possible && rank != 0) so_far = std::min(so_far, rank);
  };
  better(access.mapped, preference.map);
  better(access.readable, preference.read);
  better(access.message, preference.message);
  return so_far;
}

std::size_t reads_most(std::size_t preferred, std::span<const ByteCount> bytes) {
  std::size_t most = preferred;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > bytes[most]) most = i;
  }
  return most;
}

int best_path(const transport::Preference& preference, const transport::Path& path) {
  return best_path(no_path, preference, {.mapped = path.map, .readable = path.read, .message = path.message});
}

bool worth_connecting(const transport::Preference& next, int worst, bool messages_missing) {
  return potential_path(next) < worst || (messages_missing && next.message != 0);
}

}  // namespace shardwire
