// SPDX-License-Identifier: Apache-2.0
// Measures strided copies beside plain copies of as many bytes: one row for each shape, length of runs and kind of stores.
// Outline: options; shapes; what one member does in a turn; rows; turns.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>

#include "memory/digest.hpp"
#include "memory/kernel_choice.hpp"
#include "memory/strided_copy.hpp"
#include "perf/measure/copy.hpp"
#include "perf/program.hpp"
#include "perf/turns.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::perf;
using memory::Stores;

constexpr int repeats = 9;
constexpr ByteCount band_bytes = 64u << 20;  // that each process copies

struct Options {
  std::vector<ByteCount> runs{64, 256, 1024, 2048, 7168, 16384, 65536};
  std::vector<std::string> kernels;
  std::string commit;
  int processes = 1;
};

struct Shape {
  std::string name;
  ByteCount run_bytes;
};

/// Lies in pages that all members share.
struct Board {
  TurnBoard turns;
  std::array<std::string_view, 2> chosen;  // of member 0, its digest apart; names lie at the same place in all members
};

// As in a restore from FSDP to TP, or back: what one member copies is a band of columns of a matrix that all of them
// share, contiguous on the other side. More bands than members keep runs as far apart as eight ranks do.
struct Buffers {
  ByteCount bands;
  std::byte* shared;  // bands * band_bytes
  std::byte* own;     // band_bytes for each member
};

struct Turn {
  std::string name;
  std::function<void(const Buffers&, int member)> copy;
};

struct Task {
  Box box;
  PlacedBox source;
  PlacedBox target;
  const std::byte* from;
  std::byte* to;
};

Task task_of(const Buffers& buffers, int member, const Shape& shape) {
  const auto run = static_cast<Extent>(shape.run_bytes);
  const Extent rows = static_cast<Extent>(band_bytes) / run;
  const auto bands = static_cast<Extent>(buffers.bands);
  const Box box{{0, run * member}, {rows, run}};
  const PlacedBox dense = memory::packed(box);
  const PlacedBox strided{Box{{0, 0}, {rows, run * bands}}, 0, {run * bands, 1}};
  const auto begin = static_cast<ByteCount>(member) * band_bytes;
  std::byte* const own = buffers.own + begin;
  if (shape.name == "contiguous") return {box, dense, dense, buffers.shared + begin, own};
  if (shape.name == "source-strided") return {box, strided, dense, buffers.shared, own};
  return {box, dense, strided, own, buffers.shared};
}

constexpr const char* streaming_name = "streaming";
constexpr const char* digest_name = "copy and digest";

void copy(const Task& task, Stores stores) {
  memory::StridedCopy(task.box, task.source, task.target, 1).run_all(task.from, task.to, stores);
}
void copy_and_digest(const Task& task) {
  double digest_seconds = 0;
  (void)memory::copy_and_digest(task.box, task.source, task.target, 1, task.from, task.to, Stores::streaming,
                                digest_seconds);
}

Turn plain_turn(const PlainCopy& plain) {
  return {plain.name, [&plain](const Buffers& buffers, int member) {
            const auto begin = static_cast<ByteCount>(member) * band_bytes;
            plain.copy({buffers.shared + begin, band_bytes}, {buffers.own + begin, band_bytes});
          }};
}

void take_turns(Board& board, const Shape& shape, const Buffers& buffers, const std::vector<Turn>& turns, int member) {
  board.turns.take_turns(member, repeats, turns.size(), [&](std::size_t turn) { turns[turn].copy(buffers, member); });
  if (member != 0) return;
  for (const bool kept : {false, true}) {
    const ByteCount run_bytes = shape.name == "contiguous" ? band_bytes : shape.run_bytes;
    board.chosen[kept ? 1 : 0] = memory::kernel_choice().best({run_bytes, kept}).name;
  }
}

std::string label(const Shape& shape) {
  return shape.name == "contiguous" ? shape.name : fmt::format("{} {}", shape.name, shape.run_bytes);
}

void print_rows(const Shape& shape, const std::vector<Turn>& turns, const Board& board, const Options& options) {
  nlohmann::ordered_json bounds;
  nlohmann::ordered_json cpu;
  std::string fastest;
  TurnTimes bound;
  const std::size_t plain = plain_copies().size();
  for (std::size_t turn = 0; turn < plain; ++turn) {
    const TurnTimes times = board.turns.times(turn, repeats);
    bounds[turns[turn].name] = times.wall.median;
    cpu[turns[turn].name] = times.cpu.median;
    if (fastest.empty() || times.cpu.median < bound.cpu.median) {
      fastest = turns[turn].name;
      bound = times;
    }
  }
  const TurnTimes streaming = board.turns.times(plain, repeats);
  for (std::size_t turn = plain; turn < turns.size(); ++turn) {
    const TurnTimes times = board.turns.times(turn, repeats);
    auto row = turn_row({.name = fmt::format("perf_copy {}, {}", label(shape), turns[turn].name),
                         .commit = options.commit,
                         .processes = options.processes,
                         .repeats = repeats,
                         .bytes = band_bytes * static_cast<ByteCount>(options.processes),
                         .times = times,
                         .bound = fastest,
                         .bound_times = bound});
    row["bounds"] = bounds;
    row["cpu_seconds"] = cpu;
    row["cpu_seconds"][turns[turn].name] = times.cpu.median;
    if (turns[turn].name == streaming_name) row["kernel"] = board.chosen[0];
    if (turns[turn].name == digest_name) {
      row["kernel"] = board.chosen[1];
      row["over_streaming"] = times.cpu.median / streaming.cpu.median;
    }
    print_turn(row);
  }
}

void measure(const Shape& shape, const Options& options) {
  std::vector<Turn> turns;
  for (const PlainCopy& plain : plain_copies()) turns.push_back(plain_turn(plain));
  const auto add = [&](const std::string& name, const std::function<void(const Task& task)>& act) {
    turns.push_back({name, [shape, act](const Buffers& buffers, int member) { act(task_of(buffers, member, shape)); }});
  };
  add(streaming_name, [](const Task& task) { copy(task, Stores::streaming); });
  add("cached", [](const Task& task) { copy(task, Stores::cached); });
  add(digest_name, copy_and_digest);
  add("streaming, then digest", [](const Task& task) {
    copy(task, Stores::streaming);
    (void)memory::digest_box(task.box, task.target, task.to, 1);
  });
  for (const std::string& kernel : options.kernels) {
    add("kernel " + kernel, [kernel](const Task& task) {
      memory::kernel_choice().force(kernel);
      copy(task, Stores::streaming);
      memory::kernel_choice().force("");
    });
  }

  const ByteCount bands = std::max<ByteCount>(8, static_cast<ByteCount>(options.processes));
  const auto shared = shared_pages(bands * band_bytes);
  const auto own = shared_pages(static_cast<ByteCount>(options.processes) * band_bytes);
  std::memset(shared.get(), 1, bands * band_bytes);
  std::memset(own.get(), 2, static_cast<ByteCount>(options.processes) * band_bytes);
  const Buffers buffers{bands, static_cast<std::byte*>(shared.get()), static_cast<std::byte*>(own.get())};
  const auto board_pages = shared_pages(sizeof(Board));
  Board& board = *new (board_pages.get()) Board;
  board.turns.open(options.processes);
  std::vector<Child> children;
  for (int member = 0; member < options.processes; ++member) {
    children.push_back(
        {fmt::format("copier {}", member), [&, member] { take_turns(board, shape, buffers, turns, member); }});
  }
  run_children(children, std::chrono::seconds(300), [](pid_t) {});
  print_rows(shape, turns, board, options);
}

std::vector<std::string> runnable_kernels() {
  std::vector<std::string> names;
  for (const memory::CopyKernel& kernel : memory::copy_kernels()) {
    if (kernel.has_feature()) names.emplace_back(kernel.name);
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  perf::Program program("perf_copy", "Measures strided copies against plain copies", options.commit);
  CLI::App& app = program.options();
  app.add_option("--runs", options.runs, "Bytes of a run, divisors of the bytes")
      ->check(CLI::PositiveNumber)
      ->delimiter(',');
  app.add_option("--kernels", options.kernels, "Copy kernels that also take turns, or all")->delimiter(',');
  app.add_option("--processes", options.processes, "Processes that copy at once")
      ->check(CLI::Range(1, TurnBoard::max_processes));
  return program.run(argc, argv, [&] {
    if (options.kernels == std::vector<std::string>{"all"}) options.kernels = runnable_kernels();
    for (const std::string& kernel : options.kernels) memory::kernel_choice().force(kernel);  // throws if it cannot
    memory::kernel_choice().force("");
    measure({"contiguous", options.runs.front()}, options);  // one run, however long the rows are
    for (const char* const shape : {"source-strided", "target-strided"}) {
      for (const ByteCount run_bytes : options.runs) measure({shape, run_bytes}, options);
    }
    return 0;
  });
}
