// SPDX-License-Identifier: Apache-2.0
#include "memory/address_space.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace shardwire::memory {

namespace {

// Calls visit(line) for each line of the file. One buffer, on the stack: this runs for every restore.
template <typename Visit>
void each_line_of_maps(Visit visit) {
  const int file = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
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
    if (held == buffer.size()) held = 0;  // a path without end; its line is of no use
  }
  ::close(file);
}

}  // namespace

// A line: "7f0a6c000000-7f0a6c021000 rw-p ..".
AddressSpace::AddressSpace() {
  each_line_of_maps([this](std::string_view line) {
    Range range;
    const char* const end = line.data() + line.size();
    const auto first = std::from_chars(line.data(), end, range.begin, 16);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return;
    const auto second = std::from_chars(first.ptr + 1, end, range.end, 16);
    if (second.ec != std::errc() || end - second.ptr < 3) return;
    known_ = true;
    const bool readable = second.ptr[1] == 'r';
    const bool writable = second.ptr[2] == 'w';
    if (readable) add(readable_, range);
    if (readable && writable) add(writable_, range);
  });
}

void AddressSpace::add(std::vector<Range>& ranges, const Range& range) {
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

bool AddressSpace::covers(const std::vector<Range>& ranges, const void* data, ByteCount bytes) const {
  if (!known_ || bytes == 0) return true;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                      [](std::uintptr_t address, const Range& range) { return address < range.begin; });
  if (after == ranges.begin()) return false;
  const Range& range = *std::prev(after);
  return begin < range.end && bytes <= range.end - begin;
}

}  // namespace shardwire::memory
