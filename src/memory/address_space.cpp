// SPDX-License-Identifier: Apache-2.0
// Outline: querying one mapping; reading all mappings; lookups.
#include "memory/address_space.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

namespace shardwire::memory {

namespace {

// Beyond that many queries, reading all mappings costs less.
constexpr unsigned max_asked = 64;

// <linux/fs.h> of Linux 6.11, PROCMAP_QUERY; older headers lack it.
struct MappingQuery {
  std::uint64_t size = sizeof(MappingQuery);
  std::uint64_t flags = 0;
  std::uint64_t address = 0;
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::uint64_t mapping_flags = 0;
  std::uint64_t page_size = 0;
  std::uint64_t offset = 0;
  std::uint64_t inode = 0;
  std::uint32_t device[2] = {};
  std::uint32_t name_size = 0;
  std::uint32_t build_id_size = 0;
  std::uint64_t name_address = 0;
  std::uint64_t build_id_address = 0;
};
static_assert(sizeof(MappingQuery) == 104);
constexpr unsigned long query_mapping = _IOWR('f', 17, MappingQuery);
constexpr std::uint64_t is_readable = 1;
constexpr std::uint64_t is_writable = 2;

// Calls visit(line) for each line of the file. One buffer on the stack, because this runs for every restore.
template <typename Visit>
void each_line(int file, Visit visit) {
  std::array<char, 16 * 1024> buffer;
  std::size_t held = 0;
  while (true) {
    const ssize_t got = ::read(file, buffer.data() + held, buffer.size() - held);
    if (got <= 0) break;
    held += static_cast<std::size_t>(got);
    const char* at = buffer.data();
    const char* const last = at + held;
    for (const char* end = std::find(at, last, '\n'); end != last; end = std::find(at, last, '\n')) {
      visit(std::string_view(at, end));
      at = end + 1;
    }
    held = static_cast<std::size_t>(last - at);
    std::copy(at, last, buffer.data());
    if (held == buffer.size()) held = 0;  // an endless path; its line is useless
  }
}

}  // namespace

AddressSpace::AddressSpace() : maps_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)), known_(maps_.get() >= 0) {
}

std::optional<AddressSpace::Range> AddressSpace::mapping_at(std::uintptr_t address, Access access) const {
  MappingQuery query;
  query.flags = access == Access::read ? is_readable : is_readable | is_writable;
  query.address = address;
  if (::ioctl(maps_.get(), query_mapping, &query) != 0) return std::nullopt;
  return Range{query.first, query.end};
}

// A line: "7f0a6c000000-7f0a6c021000 rw-p ..".
void AddressSpace::read_all() {
  all_read_ = true;
  ranges_ = {};
  bool any = false;
  each_line(maps_.get(), [&](std::string_view line) {
    Range range;
    const char* const end = line.data() + line.size();
    const auto first = std::from_chars(line.data(), end, range.begin, 16);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return;
    const auto second = std::from_chars(first.ptr + 1, end, range.end, 16);
    if (second.ec != std::errc() || end - second.ptr < 3) return;
    any = true;
    const bool readable = second.ptr[1] == 'r';
    const bool writable = second.ptr[2] == 'w';
    if (readable) add(Access::read, range);
    if (readable && writable) add(Access::write, range);
  });
  known_ = any;
}

AddressSpace::Ranges::iterator AddressSpace::first_after(Ranges& ranges, std::uintptr_t address) {
  return std::upper_bound(ranges.begin(), ranges.end(), address,
                          [](std::uintptr_t at, const Range& range) { return at < range.begin; });
}

// Requires: the range follows all ranges added before, or equals one of them.
void AddressSpace::add(Access access, const Range& range) {
  Ranges& ranges = ranges_[static_cast<std::size_t>(access)];
  const auto after = first_after(ranges, range.begin);
  if (after != ranges.begin() && std::prev(after)->end == range.begin) {
    std::prev(after)->end = range.end;
  } else {
    ranges.insert(after, range);
  }
}

// End of the known accessible addresses that continue from there without a gap.
std::uintptr_t AddressSpace::known_end(Access access, std::uintptr_t address) {
  Ranges& ranges = ranges_[static_cast<std::size_t>(access)];
  const auto after = first_after(ranges, address);
  return after == ranges.begin() ? address : std::max(address, std::prev(after)->end);
}

bool AddressSpace::covers(Access access, const void* data, ByteCount bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (bytes > UINTPTR_MAX - begin) return false;
  for (std::uintptr_t at = begin; known_ && at < begin + bytes;) {
    const std::uintptr_t end = known_end(access, at);
    if (end > at) {
      at = end;
      continue;
    }
    if (all_read_) return false;
    const auto mapping = ++asked_ <= max_asked ? mapping_at(at, access) : std::nullopt;
    if (mapping) {
      add(access, *mapping);
    } else {
      read_all();  // an older kernel, or really not mapped
    }
  }
  return true;
}

}  // namespace shardwire::memory
