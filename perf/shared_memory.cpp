// SPDX-License-Identifier: Apache-2.0
// Measures what the shm transport does with memory of another process: reads by cross-memory attach beside plain copies of
// the same ranges within one process.
// Outline: the two processes; turns and rows; reads.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "perf/program.hpp"
#include "perf/turns.hpp"
#include "transport/transport.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::perf;
using transport::ReadRange;

constexpr std::array<ByteCount, 5> runs{1 << 20, 64 << 10, 16 << 10, 4 << 10, 512};
constexpr ByteCount read_bytes = 128u << 20;
constexpr ByteCount shared_bytes = 2 * read_bytes;  // strided reads skip every other run
constexpr int repeats = 9;

/// Memory of the process that publishes, made before the one that reads is forked.
struct Owner {
  std::unique_ptr<transport::Fabric> fabric = transport::choose("shm").open();
  std::unique_ptr<transport::Region> arena = fabric->allocate(shared_bytes);
  Bytes memory = Bytes(shared_bytes, std::byte{2});
  std::unique_ptr<transport::Region> adopted = fabric->adopt(transport::host_memory(memory));

  Owner() { std::memset(arena->memory().address, 1, shared_bytes); }
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

struct Turn {
  std::string name;
  std::function<void()> run;
  std::vector<TurnSpan> spans{};
};

void take_turns(std::vector<Turn>& turns) {
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    for (Turn& turn : turns) {
      const TurnSpan span = timed_turn(turn.run);
      if (repeat > 0) turn.spans.push_back(span);  // the one before warmed up
    }
  }
}

/// A row for each turn but the first, which is what they are held against.
void print_rows(const std::string& what, ByteCount run_bytes, const std::vector<Turn>& turns,
                const std::string& given_commit) {
  const Turn& bound = turns.front();
  const TurnTimes bound_times = times_of(bound.spans);
  for (std::size_t i = 1; i < turns.size(); ++i) {
    const TurnTimes times = times_of(turns[i].spans);
    auto row = turn_row({.name = fmt::format("perf_shared_memory {}, {}", what, turns[i].name),
                         .commit = given_commit,
                         .processes = 2,
                         .repeats = repeats,
                         .bytes = read_bytes,
                         .times = times,
                         .bound = bound.name,
                         .bound_times = bound_times});
    row["versions"]["fabric"] = transport::choose("shm").open()->version();
    row["run_bytes"] = run_bytes;
    row["cpu_seconds"] = {{bound.name, bound_times.cpu.median}, {turns[i].name, times.cpu.median}};
    print_turn(row);
  }
}

void measure_reads(const Owner& owner, const Reader& reader, ByteCount run_bytes, bool from_strided, bool to_strided,
                   const std::string& given_commit) {
  Bytes own(shared_bytes, std::byte{3});  // stands for the owner's memory in the plain copy
  Bytes target(shared_bytes, std::byte{4});
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
  const char* shape = to_strided ? "strided on both sides" : from_strided ? "strided at the source" : "contiguous";
  print_rows(fmt::format("{}, runs of {}", shape, run_bytes), run_bytes, turns, given_commit);
}

void measure(const Owner& owner, support::Descriptor socket, const std::string& given_commit) {
  const Reader reader(owner, std::move(socket));
  for (const ByteCount run : runs) measure_reads(owner, reader, run, false, false, given_commit);
  for (const ByteCount run : runs) measure_reads(owner, reader, run, true, false, given_commit);
  for (const ByteCount run : runs) measure_reads(owner, reader, run, true, true, given_commit);
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
