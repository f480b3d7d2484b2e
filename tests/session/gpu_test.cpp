// SPDX-License-Identifier: Apache-2.0
// Restores and exchanges over memory of a real device. device_test.cpp tests faults over fake devices.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/deadline.hpp"
#include "support/gpu.hpp"
#include "support/job.hpp"

namespace session_gpu {

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

enum class Place : std::uint8_t { host, host_arena, device, device_arena };
constexpr std::array places{Place::host, Place::host_arena, Place::device, Place::device_arena};

/// A rank's shard of a tensor, on a device or on the host.
class PlacedShard {
 public:
  PlacedShard(Session& session, const std::string& name, const Extents& shape, Layout layout, int rank, Place place)
      : spec_{{name, "exp_avg"}, DType::f32, shape}, layout_(std::move(layout)), host_(spec_, layout_, Rank{rank}) {
    const ByteCount bytes = host_.size_bytes();
    switch (place) {
      case Place::host: break;
      case Place::host_arena:
        arena_ = session.allocate(bytes);
        host_.use(arena_.data());
        break;
      case Place::device: device_ = gpu_runtime().allocate(0, bytes); break;
      case Place::device_arena: arena_ = session.allocate(bytes, MemoryKind::cuda, 0); break;
    }
    if (device_) there_ = device_->address();
    if (place == Place::device_arena) there_ = arena_.data();
    if (there_ != nullptr) pinned_ = gpu_runtime().allocate_host(std::max<ByteCount>(bytes, 1));
    put();
  }
  void fill(std::uint64_t seed) {
    host_.fill(seed);
    put();
  }
  [[nodiscard]] std::size_t wrong(std::uint64_t seed) {
    if (there_ != nullptr) {
      copy(there_, pinned_->address());
      std::memcpy(host_.data(), pinned_->address(), host_.size_bytes());
    }
    return host_.wrong(seed);
  }
  void add_to(Catalog& catalog, void* event = nullptr) {
    View view{.data = there_ != nullptr ? there_ : host_.data()};
    view.ready_event = event;
    catalog.add(spec_, layout_, view);
  }
  [[nodiscard]] std::byte* there() const { return there_; }
  [[nodiscard]] ByteCount bytes() const { return host_.size_bytes(); }

 private:
  void put() {
    if (there_ == nullptr) return;
    std::memcpy(pinned_->address(), host_.data(), host_.size_bytes());
    copy(pinned_->address(), there_);
  }
  void copy(const std::byte* from, std::byte* to) {
    const auto stream = gpu_runtime().open_stream(0);
    const auto one = dense_copy(from, to, host_.size_bytes());
    stream->copy({&one, 1});
    finish(*stream);
  }

  TensorSpec spec_;
  Layout layout_;
  TestShard host_;
  Arena arena_;
  std::unique_ptr<memory::DeviceMemory> device_;
  std::unique_ptr<memory::DeviceMemory> pinned_;
  std::byte* there_ = nullptr;  // null on the host
};

/// A tensor split by rows for each pair of places, wanted by columns.
struct Matrix {
  std::vector<std::unique_ptr<PlacedShard>> sources, targets;
  Catalog held, wanted;

  Matrix(Session& session, int rank, int ranks, const Extents& shape)
      : held(Rank{rank}, ranks), wanted(Rank{rank}, ranks) {
    for (const Place from : places) {
      for (const Place to : places) {
        const std::string name = "t" + std::to_string(sources.size());
        add(sources, session, name, shape, Layout::chunk(0, ranks), rank, from).add_to(held);
        add(targets, session, name, shape, Layout::chunk(1, ranks), rank, to).add_to(wanted);
        const std::string element = name + "one";  // goes by value
        add(sources, session, element, Extents{1}, Layout::replicated(), rank, from).add_to(held);
        add(targets, session, element, Extents{1}, Layout::replicated(), rank, to).add_to(wanted);
      }
    }
  }
  void fill(std::uint64_t seed) const {
    for (std::size_t i = 0; i < sources.size(); ++i) sources[i]->fill(seed + i);
  }
  void require_arrived(std::uint64_t seed) const {
    for (std::size_t i = 0; i < targets.size(); ++i) {
      require(targets[i]->wrong(seed + i) == 0, "tensor " + std::to_string(i) + " has arrived");
    }
  }

 private:
  template <typename... Rest>
  static PlacedShard& add(std::vector<std::unique_ptr<PlacedShard>>& all, Rest&&... rest) {
    return *all.emplace_back(std::make_unique<PlacedShard>(std::forward<Rest>(rest)...));
  }
};

}  // namespace

}  // namespace session_gpu

BOOST_AUTO_TEST_SUITE(session_gpu, *boost::unit_test::precondition(has_gpu))

BOOST_DATA_TEST_CASE(tensors_move_between_any_two_places, boost::unit_test::data::make({false, true}), with_digests) {
  const Deadline deadline(200s);
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    {
      const Matrix matrix(session, rank, 2, {64, 96});
      for (std::uint64_t step = 0; step < 3; ++step) {  // later steps start from the values of the first
        matrix.fill(100 * step);
        const Publication publication = session.publish(matrix.held, {.step = static_cast<std::int64_t>(step)});
        session.gather("published " + std::to_string(step), {}, 60s);
        RestoreOptions options = tight_within(patience);
        options.verify = with_digests ? Verify::digest : Verify::generation;
        Restore restore = session.restore(matrix.wanted, options);
        restore.wait();
        matrix.require_arrived(100 * step);
        const RestoreReport& report = restore.report();
        require(report.moved_bytes + report.local_bytes == report.needed_bytes + report.overread_bytes,
                "every byte is counted once");
        require(report.staging_peak_bytes <= report.staging_budget_bytes, "staging stays inside of its budget");
        session.gather("restored " + std::to_string(step), {}, 60s);
      }
    }
    session.close(10s);
  });
}

BOOST_AUTO_TEST_CASE(an_exchange_may_overwrite_its_own_sources) {
  const Deadline deadline(200s);
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    {
      PlacedShard state(session, "w", {64, 64}, Layout::chunk(0, 2), rank, Place::device_arena);
      state.fill(9);
      Catalog held(Rank{rank}, 2);
      state.add_to(held);
      Catalog wanted(Rank{rank}, 2);
      wanted.add({{"w", "exp_avg"}, DType::f32, {64, 64}}, Layout::chunk(1, 2), View{.data = state.there()});
      session.exchange(held, wanted);
      PlacedShard expected(session, "w", {64, 64}, Layout::chunk(1, 2), rank, Place::device);
      const auto stream = gpu_runtime().open_stream(0);
      const auto one = dense_copy(state.there(), expected.there(), state.bytes());
      stream->copy({&one, 1});
      finish(*stream);
      require(expected.wrong(9) == 0, "columns lie where rows were");
      session.gather("done", {}, 60s);
    }
    session.close(10s);
  });
}

// The source publishes before its values are computed, and the reader restores before its memory is ready.
BOOST_AUTO_TEST_CASE(events_of_views_are_waited_for_and_those_of_the_caller_recorded) {
  const Deadline deadline(200s);
  const auto port = free_port();
  constexpr ByteCount much = 256u << 20;
  const ByteCount work_bytes = fake_gpus() == nullptr ? much : 1u << 20;
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    {
      const auto work = gpu_runtime().allocate(0, 2 * work_bytes);
      const auto stream = gpu_runtime().open_stream(0);
      const GpuEvent ready;
      const GpuEvent done;
      const auto take_long = [&] {
        const auto one = dense_copy(work->address(), work->address() + work_bytes, work_bytes);
        for (int i = 0; i < 20; ++i) stream->copy({&one, 1});
      };
      PlacedShard values(session, "w", {512, 512}, Layout::replicated(), 0, Place::device);
      values.fill(4);
      PlacedShard shard(session, "w", {512, 512}, Layout::replicated(), 0, Place::device);
      take_long();
      const auto late = dense_copy(values.there(), shard.there(), shard.bytes());
      if (rank == 0) stream->copy({&late, 1});
      if (rank == 1) stream->clear(shard.there(), shard.bytes());
      stream->record(ready.get());
      Catalog catalog(Rank{0}, 1);
      shard.add_to(catalog, ready.get());
      if (rank == 0) {
        const Publication publication = session.publish(catalog);
        session.gather("done", {}, 60s);
      } else {
        RestoreOptions options = within(patience);
        options.done_events = {{.event = done.get(), .device = 0}};
        session.restore(catalog, options).wait();
        const auto after = gpu_runtime().open_stream(0);
        after->wait(done.get());
        finish(*after);
        require(shard.wrong(4) == 0, "the values that were made last have arrived");
        session.gather("done", {}, 60s);
      }
      finish(*stream);
    }
    session.close(10s);
  });
}

BOOST_AUTO_TEST_SUITE_END()
