// SPDX-License-Identifier: Apache-2.0
// Measures what the shm transport does with memory of another process: reads by cross-memory attach beside plain copies of
// the same ranges within one process, and what the first look at a mapped arena costs.
// Outline: the two processes; turns and rows; reads; first looks.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "perf/program.hpp"
#include "perf/turns.hpp"
#include "transport/transport.hpp"

#ifndef MADV_POPULATE_READ  // Linux 5.14
#define MADV_POPULATE_READ 22
#endif

namespace {

using namespace shardwire;
using namespace shardwire::perf;
using transport::ReadRange;

constexpr std::array<ByteCount, 5> runs{1 << 20, 64 << 10, 16 << 10, 4 << 10, 512};
constexpr ByteCount read_bytes = 128u << 20;
constexpr ByteCount arena_bytes = 1024u << 20;  // strided reads need twice what they read
constexpr int repeats = 9;

/// Memory of the process that publishes, made before the one that reads is forked.
struct Owner {
  std::unique_ptr<transport::Fabric> fabric = transport::choose("shm").open();
  std::unique_ptr<transport::Region> arena = fabric->allocate(arena_bytes);
  Bytes memory = Bytes(2 * read_bytes, std::byte{2});
  std::unique_ptr<transport::Region> adopted = fabric->adopt(transport::host_memory(memory));

  Owner() { std::memset(arena->memory().address, 1, arena_bytes); }
};

struct Reader {
  std::unique_ptr<transport::Fabric> fabric = transport::choose("shm").open();
  std::unique_ptr<transport::Endpoint> endpoint;

  Reader(const Owner& owner, support::Descriptor socket) {
    const Bytes address = owner.fabric->address();
    transport::PeerAddress peer{.address = address};
    peer.sockets.push_back(std::move(socket));
    endpoint = fabric->connect(std::move(peer));
    if (const auto path = endpoint->path({}); !path.read) throw std::runtime_error(path.why_not.detail);
  }
  [[nodiscard]] std::unique_ptr<transport::RemoteRegion> import_from(const transport::Region& region) const {
    const Bytes key = region.key();
    transport::RegionKey out{key};
    for (const int descriptor : region.descriptors()) {
      out.descriptors.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    }
    return endpoint->import_region(std::move(out), region.memory().bytes);
  }
  /// The ranges in lists that are as long as allowed, `under_way` of them at a time.
  void read(const transport::RemoteRegion& region, std::span<const ReadRange> ranges, std::size_t under_way) const {
    // No longer than a fair share, so that each thread has one.
    const std::size_t longest =
        std::min(endpoint->path({}).max_read_ranges, (ranges.size() + under_way - 1) / under_way);
    std::size_t posted = 0;
    while (!ranges.empty() || posted > 0) {
      while (!ranges.empty() && posted < under_way) {
        const auto part = ranges.first(std::min(ranges.size(), longest));
        ranges = ranges.subspan(part.size());
        ++posted;
        endpoint->read(region, part, [&](const transport::Outcome& outcome) {
          if (outcome) throw std::runtime_error(outcome->message);
          --posted;
        });
      }
      if (!fabric->progress() && fabric->arm()) {
        // Asleep, as a member of a job would be: whoever polls takes a core from the threads that read.
        pollfd entry{.fd = fabric->event_descriptor(), .events = POLLIN, .revents = 0};
        ::poll(&entry, 1, -1);
      }
    }
  }
};

/// Something to time; what comes before it and after it is not counted.
struct Turn {
  std::string name;
  std::function<void()> run;
  std::function<void()> before = [] {};
  std::function<void()> after = [] {};
  std::vector<TurnSpan> spans{};
};

void take_turns(std::vector<Turn>& turns) {
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    for (Turn& turn : turns) {
      turn.before();
      const TurnSpan span = timed_turn(turn.run);
      turn.after();
      if (repeat > 0) turn.spans.push_back(span);  // the one before warmed up
    }
  }
}

/// A row for each turn but the first, which is what they are held against.
void print_rows(const std::string& what, ByteCount run_bytes, ByteCount bytes, const std::vector<Turn>& turns,
                const std::string& given_commit) {
  const Turn& bound = turns.front();
  const TurnTimes bound_times = times_of(bound.spans);
  for (std::size_t i = 1; i < turns.size(); ++i) {
    const TurnTimes times = times_of(turns[i].spans);
    auto row = turn_row({.name = fmt::format("perf_shared_memory {}, {}", what, turns[i].name),
                         .commit = given_commit,
                         .processes = 2,
                         .repeats = repeats,
                         .bytes = bytes,
                         .times = times,
                         .bound = bound.name,
                         .bound_times = bound_times});
    row["versions"]["fabric"] = transport::choose("shm").open()->version();
    if (run_bytes > 0) row["run_bytes"] = run_bytes;
    row["cpu_seconds"] = {{bound.name, bound_times.cpu.median}, {turns[i].name, times.cpu.median}};
    print_turn(row);
  }
}

void measure_reads(const Owner& owner, const Reader& reader, ByteCount run_bytes, bool from_strided, bool to_strided,
                   const std::string& given_commit) {
  Bytes own(2 * read_bytes, std::byte{3});  // what stands for the owner's memory in the plain copy
  Bytes target(2 * read_bytes, std::byte{4});
  std::vector<ReadRange> ranges;
  for (ByteCount done = 0; done < read_bytes; done += run_bytes) {
    const ByteCount from = from_strided ? 2 * done : done;
    const ByteCount to = to_strided ? 2 * done : done;
    ranges.push_back({from, transport::host_memory(target).part(to, run_bytes)});
  }
  const auto adopted = reader.import_from(*owner.adopted);
  const auto arena = reader.import_from(*owner.arena);
  const std::byte* mapped = arena->mapped().address;
  const auto copy_from = [&](const std::byte* source) {
    for (const ReadRange& range : ranges) std::memcpy(range.into.address, source + range.offset_bytes, run_bytes);
  };
  std::vector<Turn> turns{
      {"memcpy within one process", [&] { copy_from(own.data()); }},
      {"memcpy from the mapped arena", [&] { copy_from(mapped); }},
      {"attach", [&] { reader.read(*adopted, ranges, 1); }},
      {"attach by 2 threads", [&] { reader.read(*adopted, ranges, 2); }},
  };
  take_turns(turns);
  if (std::memcmp(target.data(), owner.memory.data(), run_bytes) != 0)
    throw std::runtime_error("other bytes were read");
  const char* shape = from_strided ? to_strided ? "strided on both sides" : "strided at the source"
                      : to_strided ? "strided at the target"
                                   : "contiguous";
  print_rows(fmt::format("{}, runs of {}", shape, run_bytes), run_bytes, read_bytes, turns, given_commit);
}

void touch(const std::byte* from, ByteCount bytes) {
  for (ByteCount at = 0; at < bytes; at += 4096) static_cast<void>(*static_cast<const volatile std::byte*>(from + at));
}

void populate(const std::byte* from, ByteCount bytes) {
  if (::madvise(const_cast<std::byte*>(from), bytes, MADV_POPULATE_READ) != 0) throw std::runtime_error("madvise");
}

void by_two(void (*act)(const std::byte*, ByteCount), const std::byte* from, ByteCount bytes) {
  const ByteCount half = bytes / 2;
  std::thread other([&] { act(from + half, bytes - half); });
  act(from, half);
  other.join();
}

// Each turn begins with a mapping that nobody has looked at.
void measure_first_looks(const Owner& owner, const Reader& reader, const std::string& given_commit) {
  std::unique_ptr<transport::RemoteRegion> arena;
  Bytes target(arena_bytes, std::byte{5});
  const auto map = [&] { arena = reader.import_from(*owner.arena); };
  const auto unmap = [&] { arena.reset(); };
  const auto touch_all = [&] { touch(arena->mapped().address, arena_bytes); };
  const auto populate_all = [&] { populate(arena->mapped().address, arena_bytes); };
  const auto populate_by_two = [&] { by_two(populate, arena->mapped().address, arena_bytes); };
  const auto copy = [&] { std::memcpy(target.data(), arena->mapped().address, arena_bytes); };
  const auto see_all = [&] { map(), populate_all(), touch_all(); };
  std::vector<Turn> turns{
      {"memcpy from pages seen before", copy, see_all, unmap},
      {"memcpy, lazily", copy, map, unmap},
      {"touching each page, lazily", touch_all, map, unmap},
      {"touching each page, by 2 threads", [&] { by_two(touch, arena->mapped().address, arena_bytes); }, map, unmap},
      {"MADV_POPULATE_READ", populate_all, map, unmap},
      {"MADV_POPULATE_READ by 2 threads", populate_by_two, map, unmap},
      {"MADV_POPULATE_READ by 2 threads, then memcpy", [&] { populate_by_two(), copy(); }, map, unmap},
      {"mapping and unmapping alone", [&] { map(), unmap(); }},
  };
  take_turns(turns);
  print_rows("first look at an arena", 0, arena_bytes, turns, given_commit);
}

void measure(const Owner& owner, support::Descriptor socket, const std::string& given_commit) {
  const Reader reader(owner, std::move(socket));
  for (const ByteCount run : runs) measure_reads(owner, reader, run, false, false, given_commit);
  for (const ByteCount run : runs) measure_reads(owner, reader, run, true, false, given_commit);
  for (const ByteCount run : runs) measure_reads(owner, reader, run, true, true, given_commit);
  measure_first_looks(owner, reader, given_commit);
}

// The reader is a child process.
void measure_with_reader(const std::string& given_commit) {
  const Owner owner;
  int ends[2] = {-1, -1};
  // Made by the owner: the reader learns its process from the socket.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
  const support::Descriptor kept(ends[0]);
  support::Descriptor given(ends[1]);
  run_children({{"the reader", [&] { measure(owner, std::move(given), given_commit); }}}, std::chrono::seconds(600),
               [](pid_t) {});
}

}  // namespace

int main(int argc, char** argv) {
  std::string given_commit;
  perf::Program program("perf_shared_memory", "Measures reads from another process by the shm transport", given_commit);
  return program.run(argc, argv, [&] {
    measure_with_reader(given_commit);
    return 0;
  });
}
