// SPDX-License-Identifier: Apache-2.0
// Measures what the shm transport does with memory of another process: reads by cross-memory attach beside plain copies of
// the same ranges within one process, and what the first look at a mapped arena costs.
// Outline: options; the two processes; reads; first looks; rows.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "perf/measure/row.hpp"
#include "perf/program.hpp"
#include "transport/transport.hpp"

#ifndef MADV_POPULATE_READ  // Linux 5.14
#define MADV_POPULATE_READ 22
#endif

namespace {

using namespace shardwire;
using namespace shardwire::perf;
using transport::ConstMemory;
using transport::Memory;
using transport::ReadRange;

struct Options {
  std::vector<ByteCount> runs{1 << 20, 64 << 10, 16 << 10, 4 << 10, 512};
  ByteCount mebibytes = 128;
  ByteCount arena_mebibytes = 1024;
  int repeats = 9;
  std::string commit;
};

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Memory of the process that publishes, made before the one that reads is forked.
struct Owner {
  std::unique_ptr<transport::Fabric> fabric = transport::choose("shm").open();
  std::unique_ptr<transport::Region> arena;
  Bytes memory;
  std::unique_ptr<transport::Region> adopted;

  explicit Owner(const Options& options)
      : arena(fabric->allocate(options.arena_mebibytes << 20)), memory(2 * (options.mebibytes << 20)) {
    std::memset(arena->memory().address, 1, arena->memory().bytes);
    std::memset(memory.data(), 2, memory.size());
    adopted = fabric->adopt(transport::host_memory(memory));
  }
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
  std::vector<double> seconds{};
  std::vector<double> cpu_seconds{};
};

void take_turns(std::vector<Turn>& turns, int repeats) {
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    for (Turn& turn : turns) {
      turn.before();
      const auto cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
      const auto begin = clock_ns(CLOCK_MONOTONIC);
      turn.run();
      const auto end = clock_ns(CLOCK_MONOTONIC);
      const auto cpu_end = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
      turn.after();
      if (repeat == 0) continue;  // warms up
      turn.seconds.push_back(static_cast<double>(end - begin) * 1e-9);
      turn.cpu_seconds.push_back(static_cast<double>(cpu_end - cpu) * 1e-9);
    }
  }
}

/// A row for each turn but the first, which is what they are held against.
void print_rows(const std::string& what, ByteCount run_bytes, ByteCount bytes, const std::vector<Turn>& turns,
                const Options& options) {
  const Spread bound = spread_of(turns.front().seconds);
  for (const Turn& turn : turns) {
    if (&turn == &turns.front()) continue;
    const Spread wall = spread_of(turn.seconds);
    const Spread cpu = spread_of(turn.cpu_seconds);
    nlohmann::ordered_json row;
    row["name"] = fmt::format("perf_shared_memory {}, {}", what, turn.name);
    row["commit"] = commit(options.commit);
    row["machine"] = machine();
    row["versions"] = versions();
    row["versions"]["fabric"] = transport::choose("shm").open()->version();
    row["processes"] = 2;
    row["repeats"] = options.repeats;
    if (run_bytes > 0) row["run_bytes"] = run_bytes;
    row["seconds"] = wall.median;
    row["seconds_min"] = wall.least;
    row["seconds_max"] = wall.most;
    row["bytes"] = bytes;
    row["bytes_per_second"] = static_cast<double>(bytes) / wall.median;
    row["bound"] = turns.front().name;
    row["bound_seconds"] = bound.median;
    row["bound_seconds_min"] = bound.least;
    row["bound_seconds_max"] = bound.most;
    row["ratio"] = bound.median / wall.median;
    row["cpu_ratio"] = spread_of(turns.front().cpu_seconds).median / cpu.median;
    row["cpu_seconds"] = {{turns.front().name, spread_of(turns.front().cpu_seconds).median}, {turn.name, cpu.median}};
    perf::print_row(row);
    fmt::print(stderr, "{:<62} {:>6.2f} GB/s {:>7.3f} s/GB, {:.2f} of {}; by processor time {:.2f}\n",
               row["name"].get<std::string>(), row["bytes_per_second"].get<double>() * 1e-9,
               wall.median / static_cast<double>(bytes) * 1e9, row["ratio"].get<double>(), turns.front().name,
               row["cpu_ratio"].get<double>());
  }
}

void measure_reads(const Owner& owner, const Reader& reader, ByteCount run_bytes, bool from_strided, bool to_strided,
                   const Options& options) {
  const ByteCount bytes = options.mebibytes << 20;
  Bytes own(2 * bytes, std::byte{3});  // what stands for the owner's memory in the plain copy
  Bytes target(2 * bytes, std::byte{4});
  std::vector<ReadRange> ranges;
  for (ByteCount done = 0; done < bytes; done += run_bytes) {
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
  take_turns(turns, options.repeats);
  if (std::memcmp(target.data(), owner.memory.data(), run_bytes) != 0)
    throw std::runtime_error("other bytes were read");
  const char* shape = from_strided ? to_strided ? "strided on both sides" : "strided at the source"
                      : to_strided ? "strided at the target"
                                   : "contiguous";
  print_rows(fmt::format("{}, runs of {}", shape, run_bytes), run_bytes, bytes, turns, options);
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
void measure_first_looks(const Owner& owner, const Reader& reader, const Options& options) {
  const ByteCount bytes = owner.arena->memory().bytes;
  std::unique_ptr<transport::RemoteRegion> arena;
  Bytes target(bytes, std::byte{5});
  const auto turn = [&](const char* name, std::function<void(const std::byte*)> act) {
    return Turn{name, [&arena, act] { act(arena->mapped().address); },
                [&] { arena = reader.import_from(*owner.arena); }, [&] { arena.reset(); }};
  };
  const auto copy = [&](const std::byte* from) { std::memcpy(target.data(), from, bytes); };
  std::vector<Turn> turns{
      {"memcpy from pages seen before", [&] { copy(arena->mapped().address); },
       [&] {
         arena = reader.import_from(*owner.arena);
         populate(arena->mapped().address, bytes);
         touch(arena->mapped().address, bytes);
       },
       [&] { arena.reset(); }},
      turn("memcpy, lazily", copy),
      turn("touching each page, lazily", [&](const std::byte* from) { touch(from, bytes); }),
      turn("touching each page, by 2 threads", [&](const std::byte* from) { by_two(touch, from, bytes); }),
      turn("MADV_POPULATE_READ", [&](const std::byte* from) { populate(from, bytes); }),
      turn("MADV_POPULATE_READ by 2 threads", [&](const std::byte* from) { by_two(populate, from, bytes); }),
      turn("MADV_POPULATE_READ by 2 threads, then memcpy",
           [&](const std::byte* from) {
             by_two(populate, from, bytes);
             copy(from);
           }),
      {"mapping and unmapping alone", [&] { reader.import_from(*owner.arena).reset(); }},
  };
  take_turns(turns, options.repeats);
  print_rows("first look at an arena", 0, bytes, turns, options);
}

void measure(const Owner& owner, support::Descriptor socket, const Options& options) {
  const Reader reader(owner, std::move(socket));
  for (const ByteCount run : options.runs) measure_reads(owner, reader, run, false, false, options);
  for (const ByteCount run : options.runs) measure_reads(owner, reader, run, true, false, options);
  for (const ByteCount run : options.runs) measure_reads(owner, reader, run, true, true, options);
  measure_first_looks(owner, reader, options);
}

// The reader is a child process. Returns its exit status.
int measure_with_reader(const perf::Program& program, const Options& options) {
  const Owner owner(options);
  int ends[2] = {-1, -1};
  // Made by the owner: the reader learns its process from the socket.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
  support::Descriptor kept(ends[0]);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    kept.reset();
    int code = 0;
    try {
      measure(owner, support::Descriptor(ends[1]), options);
    } catch (const std::exception& error) {
      program.complain(error.what());
      code = 1;
    }
    std::fflush(stdout);
    ::_exit(code);
  }
  ::close(ends[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  perf::Program program("perf_shared_memory", "Measures reads from another process by the shm transport",
                        options.commit);
  CLI::App& app = program.options();
  app.add_option("--runs", options.runs, "Bytes of a run, divisors of the bytes")
      ->check(CLI::PositiveNumber)
      ->delimiter(',');
  app.add_option("--mebibytes", options.mebibytes, "MiB that are read")->check(CLI::PositiveNumber);
  app.add_option("--arena", options.arena_mebibytes, "MiB of the arena; at least twice as many as are read")
      ->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats, "Timed repeats; one more warms up")->check(CLI::PositiveNumber);
  return program.run(argc, argv, [&] {
    if (options.arena_mebibytes < 2 * options.mebibytes) throw CLI::ValidationError("--arena", "is too small");
    return measure_with_reader(program, options);
  });
}
