// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/device_turns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <stdexcept>

#include "memory/copier.hpp"
#include "memory/device_copies.hpp"
#include "memory/device_events.hpp"
#include "memory/strided_copy.hpp"
#include "perf/measure/private_pages.hpp"
#include "perf/measure/row.hpp"
#include "perf/measure/state_block.hpp"

namespace shardwire::perf {

namespace {

using OrderedJson = nlohmann::ordered_json;
using memory::DeviceCopy;
using memory::StridedCopy;

constexpr ByteCount slots_bytes = 8u << 20;  // as in a session
constexpr unsigned copier_threads = 2;

/// Rows of equal length, dense or with gaps of the same length between them.
struct Shape {
  ByteCount run_bytes = 0;
  ByteCount rows = 0;

  [[nodiscard]] StridedCopy copy(bool source_gaps, bool target_gaps) const {
    const auto run = static_cast<Extent>(run_bytes);
    const Box box{{0, 0}, {static_cast<Extent>(rows), run}};
    const auto placed = [&](bool gaps) { return PlacedBox{box, 0, {gaps ? 2 * run : run, 1}}; };
    return {box, placed(source_gaps), placed(target_gaps), 1};
  }
  [[nodiscard]] ByteCount bytes() const { return run_bytes * rows; }
};

/// Copies between any memory, as a session makes them.
class Queue {
 public:
  void copy(const StridedCopy& copy, const std::byte* source, std::byte* target, int source_device, int target_device) {
    std::optional<std::exception_ptr> ended;
    queue_.submit({.count = 1,
                   .copy =
                       [&](std::size_t) {
                         return memory::QueuedCopy{copy, source, target, source_device, target_device};
                       },
                   .stores = memory::Stores::streaming,
                   .on_devices = true},
                  [&](const memory::CopyResult& result) { ended = result.error; });
    while (!ended) {
      woken_.acquire();
      queue_.poll();
    }
    if (*ended) std::rethrow_exception(*ended);
  }

 private:
  std::counting_semaphore<> woken_{0};
  memory::Copier copier_{copier_threads, [this] { woken_.release(); }};
  memory::DeviceCopies queue_{copier_, [this] { woken_.release(); }, slots_bytes};
};

// Copies from or to the host fit in the memory of the others.
DeviceTurns within(DeviceTurns turns) {
  turns.host_bytes = std::min(turns.host_bytes, turns.bytes);
  return turns;
}

struct Timing {
  std::string name;
  std::function<void()> run;  // all copies of a turn; waits
  std::vector<double> seconds{};
};

class Bench {
 public:
  Bench(memory::DeviceRuntime& runtime, const DeviceTurns& turns)
      : runtime_(runtime),
        turns_(within(turns)),
        gaps_(runtime.allocate(turns.device, 2 * turns.bytes)),
        dense_(runtime.allocate(turns.device, turns.bytes)),
        pinned_(runtime.allocate_host(turns.host_bytes)),
        ordinary_(private_pages(turns.host_bytes)),
        stream_(runtime.open_stream(turns.device)) {
    fill(*gaps_, 1);
    fill(*dense_, 2);
    for (ByteCount at = 0; at < turns.host_bytes; at += 4096)
      ordinary_.get()[at] = std::byte{1};  // the first touch is not measured
  }

  std::vector<OrderedJson> rows() {
    std::vector<OrderedJson> rows;
    for (const ByteCount run : turns_.runs) {
      on_device({run, turns_.bytes / run}, rows);
      over_bus({run, turns_.host_bytes / run}, rows);
    }
    const Shape all{turns_.bytes, 1};
    const std::vector<Timing> turns = measured(
        {plain("cudaMemcpyAsync", all, gaps_->address(), dense_->address()), {"digest", [&] { digest(all, false); }}});
    rows.push_back(row("digest", all, turns[1], turns[0], 1));
    return rows;
  }

 private:
  void fill(const memory::DeviceMemory& memory, std::uint64_t seed) {
    memory::ValueBox box;
    box.first = memory.address();
    box.elements = memory.bytes();
    box.seed = seed;
    box.dims = 1;
    box.dim[0] = {memory.bytes(), 1, 1};
    if (memory::DeviceCheck* const values = memory::check_of(*stream_)) values->fill({&box, 1});
    memory::wait_until_done(*stream_);
  }

  [[nodiscard]] Timing by_stream(std::string name, const StridedCopy& copy, const std::byte* from, std::byte* to) {
    return {std::move(name), [this, one = DeviceCopy{copy, from, to}] {
              for (int i = 0; i < turns_.in_a_row; ++i) stream_->copy({&one, 1});
              memory::wait_until_done(*stream_);
            }};
  }
  // The copy engine copies long contiguous ranges.
  [[nodiscard]] Timing plain(std::string name, const Shape& shape, const std::byte* from, std::byte* to) {
    return by_stream(std::move(name), Shape{shape.bytes(), 1}.copy(false, false), from, to);
  }
  [[nodiscard]] Timing by_queue(std::string name, const StridedCopy& copy, const std::byte* from, std::byte* to,
                                bool to_host) {
    const int device = turns_.device;
    return {std::move(name), [=, this] {
              for (int i = 0; i < turns_.in_a_row; ++i) {
                queue_.copy(copy, from, to, to_host ? device : memory::on_host, to_host ? memory::on_host : device);
              }
            }};
  }

  // In turn, after a warm-up turn.
  [[nodiscard]] std::vector<Timing> measured(std::vector<Timing> turns) const {
    for (int repeat = 0; repeat <= turns_.repeats; ++repeat) {
      for (Timing& turn : turns) {
        const auto began = std::chrono::steady_clock::now();
        turn.run();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        if (repeat > 0) turn.seconds.push_back(took.count() / turns_.in_a_row);
      }
    }
    return turns;
  }

  Digest128 digest(const Shape& shape, bool gaps) {
    const DeviceCopy read{shape.copy(gaps, false), gaps ? gaps_->address() : dense_->address(), nullptr};
    Digest128 digest;
    for (int i = 0; i < turns_.in_a_row; ++i) stream_->digest({&read, 1}, {&digest, 1});
    memory::wait_until_done(*stream_);
    return digest;
  }

  void on_device(const Shape& shape, std::vector<OrderedJson>& rows) {
    const auto what = [&](const char* name) { return fmt::format("{} {}", name, shape.run_bytes); };
    const auto require_same = [&](const char* after) {
      if (digest(shape, true) == digest(shape, false)) return;
      throw std::runtime_error(fmt::format("wrong bytes after {}", what(after)));
    };
    // Different bytes are unpacked than were packed.
    for (const bool pack : {true, false}) {
      const char* const name = pack ? "pack" : "unpack";
      fill(pack ? *gaps_ : *dense_, shape.run_bytes + (pack ? 0 : 1));
      const auto copy = shape.copy(pack, !pack);
      const auto* const from = pack ? gaps_->address() : dense_->address();
      auto* const to = pack ? dense_->address() : gaps_->address();
      const Timing strided = by_stream(what(name), copy, from, to);
      // The plain copy has the same direction, so it leaves other bytes than the strided one, which therefore comes
      // last.
      const std::vector<Timing> turns = measured({plain("cudaMemcpyAsync", shape, from, to), strided});
      require_same(name);
      rows.push_back(row(name, shape, turns[1], turns[0], 2));
    }
  }

  void over_bus(const Shape& shape, std::vector<OrderedJson>& rows) {
    const std::vector<Timing> turns =
        measured({plain("cudaMemcpyAsync to pinned memory", shape, gaps_->address(), pinned_->address()),
                  by_queue("to host", shape.copy(true, false), gaps_->address(), ordinary_.get(), true),
                  plain("cudaMemcpyAsync from pinned memory", shape, pinned_->address(), dense_->address()),
                  by_queue("from host", shape.copy(false, true), ordinary_.get(), gaps_->address(), false)});
    rows.push_back(row("to host", shape, turns[1], turns[0], 1));
    rows.push_back(row("from host", shape, turns[3], turns[2], 1));
  }

  /// `touched`: how often the device's memory is read or written per byte.
  [[nodiscard]] OrderedJson row(const char* name, const Shape& shape, const Timing& turn, const Timing& bound,
                                int touched) const {
    const memory::DeviceDetails details = runtime_.details(turns_.device);
    const Spread seconds = spread_of(turn.seconds);
    const Spread bound_seconds = spread_of(bound.seconds);
    OrderedJson row;
    row["name"] = fmt::format("perf_device_copy {}", name);
    row["target"] = "gpu";
    row["commit"] = commit(turns_.commit);
    row["machine"] = machine();
    row["versions"] = versions();
    row["versions"]["device"] = runtime_.version();
    row["repeats"] = turns_.repeats;
    row["in_a_row"] = turns_.in_a_row;
    row["run_bytes"] = shape.run_bytes;
    row["bytes"] = shape.bytes();
    row["seconds"] = seconds.median;
    row["seconds_min"] = seconds.least;
    row["seconds_max"] = seconds.most;
    row["bytes_per_second"] = static_cast<double>(shape.bytes()) / seconds.median;
    row["bound"] = bound.name;
    row["bound_seconds"] = bound_seconds.median;
    row["bound_seconds_min"] = bound_seconds.least;
    row["bound_seconds_max"] = bound_seconds.most;
    row["ratio"] = bound_seconds.median / seconds.median;
    const double touched_bytes = static_cast<double>(shape.bytes()) * touched;
    row["device"] = device_json(details.name, touched_bytes / seconds.median, details.memory_bytes_per_second);
    return row;
  }

  memory::DeviceRuntime& runtime_;
  const DeviceTurns turns_;
  std::unique_ptr<memory::DeviceMemory> gaps_;
  std::unique_ptr<memory::DeviceMemory> dense_;
  std::unique_ptr<memory::DeviceMemory> pinned_;
  std::shared_ptr<std::byte> ordinary_;  // owner: this
  std::unique_ptr<memory::DeviceStream> stream_;
  Queue queue_;
};

}  // namespace

std::vector<OrderedJson> device_rows(memory::DeviceRuntime& runtime, const DeviceTurns& turns) {
  return Bench(runtime, turns).rows();
}

}  // namespace shardwire::perf
