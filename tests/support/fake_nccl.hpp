// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "memory/device.hpp"
#include "support/partial_devices.hpp"
#include "transport/bytes.hpp"
#include "transport/nccl/handles.hpp"

// NCCL and its GPUs as a collective sees them, over ordinary memory: ranks meet by their id, a group's sends and
// receives run on a stream once both sides are posted, and faults occur as set. Like NCCL, it does not notify the
// others when one rank aborts, and it does not compare the lengths of two sides: those wait forever.
namespace shardwire::test {

struct FakeOperation {
  std::byte* into = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
  bool over = false;
};

}  // namespace shardwire::test

namespace shardwire::transport::nccl {

struct Communicator {
  UniqueId id;
  int size = 0;
  int rank = 0;
  int device = 0;
  bool blocking = false;
  int polls_left = 0;  // number of queries that still return "in progress"
  bool asked = false;  // whether there was a query
  void* stream = nullptr;
  std::vector<std::shared_ptr<test::FakeOperation>> operations;  // owners: this, the stream and the peer's table
};

}  // namespace shardwire::transport::nccl

namespace shardwire::test {

/// Faults and durations. Set before the group begins.
struct FakeNcclFaults {
  int polls = 0;             ///< queries that return "in progress" after each nonblocking call
  int init_result = 0;       ///< result of the call
  int init_state = 0;        ///< state of the group once it is made
  int round_state = 0;       ///< state of the group during a round
  int absent_rank = -1;      ///< rank that never joins
  bool rounds_hang = false;  ///< sends and receives never meet
  bool abort_hangs = false;  ///< until release()
  int refused_calls = 0;     ///< number of callbacks that streams refuse
  ErrorCode refusal = ErrorCode::out_of_resources;
};

class FakeNccl {
 public:
  using Communicator = transport::nccl::Communicator;

  static FakeNccl& instance() {
    static auto& fake = *new FakeNccl;  // hung threads may outlive static destruction
    return fake;
  }
  /// Forgets all groups. Requires: no thread uses a group.
  void reset(const FakeNcclFaults& faults = {}) {
    const std::lock_guard lock(mutex_);
    faults_ = faults;
    joined_.clear();
    waiting_.clear();
    aborts_ = destroyed_ = early_ = elsewhere_ = made_ = asked_ = 0;
    released_ = false;
  }
  /// Translates the addresses of sends and receives to writable ones. Null: addresses are used as they are.
  void see_through(std::function<std::byte*(const std::byte*)> behind) {
    const std::lock_guard lock(mutex_);
    behind_ = std::move(behind);
  }
  /// Runs work on this thread with a current device.
  static void with_device(int device, const std::function<void()>& work) {
    const int before = std::exchange(current_device(), device);
    work();
    current_device() = before;
  }
  [[nodiscard]] int made() {
    const std::lock_guard lock(mutex_);
    return made_;
  }
  /// Number of communicators whose state was asked for: their rounds have begun.
  [[nodiscard]] int asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  [[nodiscard]] int aborts() {
    const std::lock_guard lock(mutex_);
    return aborts_;
  }
  /// Number of calls made while a communicator was "in progress".
  [[nodiscard]] int early() {
    const std::lock_guard lock(mutex_);
    return early_;
  }
  /// Number of calls made while the thread's current device was not the communicator's.
  [[nodiscard]] int elsewhere() {
    const std::lock_guard lock(mutex_);
    return elsewhere_;
  }
  /// Number of threads that block in the end of a group, on blocking communicators.
  [[nodiscard]] int blocked() {
    const std::lock_guard lock(mutex_);
    return blocked_;
  }
  [[nodiscard]] int destroyed() {
    const std::lock_guard lock(mutex_);
    return destroyed_;
  }

  static const transport::nccl::Api& api() {
    static const transport::nccl::Api table = make_api();
    return table;
  }

  /// Queued operations and callbacks; a callback runs once the work before it is done.
  class Stream final : public PartialStream {
   public:
    Stream() {
      const std::lock_guard lock(instance().mutex_);
      instance().streams_.insert(this);
    }
    ~Stream() override {
      while (!leave()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    void wait(void*) override {}
    void call_when_done(Done done) override {
      const std::lock_guard lock(instance().mutex_);
      instance().check_settled(this);
      if (instance().faults_.refused_calls > 0) {
        --instance().faults_.refused_calls;
        throw Error(instance().faults_.refusal, "nobody is called (as told)");
      }
      items.push_back({nullptr, std::move(done)});
      run();
    }
    [[nodiscard]] void* native() const override { return const_cast<Stream*>(this); }

    struct Item {
      std::shared_ptr<FakeOperation> operation;  // owners: see Communicator
      Done done;
    };
    // Guarded by the fake's mutex.
    std::deque<Item> items;
    void run() {
      while (!items.empty() && (!items.front().operation || items.front().operation->over)) {
        const Item item = std::move(items.front());
        items.pop_front();
        if (item.done) item.done(std::nullopt);
      }
    }

   private:
    bool leave() {
      const std::lock_guard lock(instance().mutex_);
      if (!items.empty()) return false;
      instance().streams_.erase(this);
      return true;
    }
  };

 private:
  using Pair = std::tuple<std::array<char, 128>, int, int>;
  struct Waiting {
    std::deque<std::pair<std::shared_ptr<FakeOperation>, Stream*>> sends;
    std::deque<std::pair<std::shared_ptr<FakeOperation>, Stream*>> receives;
  };
  struct Posted {
    Communicator* communicator;
    bool send;
    int peer;
    Stream* stream;
    std::shared_ptr<FakeOperation> operation;
  };

  static int& current_device() {
    static thread_local int device = -1;
    return device;
  }
  static std::vector<Posted>& group() {
    static thread_local std::vector<Posted> posted;
    return posted;
  }

  // A communicator and its stream must not be used while it is "in progress".
  void check_settled(const void* what) {
    for (const Communicator* communicator : communicators_) {
      if ((communicator == what || communicator->stream == what) && communicator->polls_left > 0) ++early_;
    }
  }
  void check_device(const Communicator& communicator) {
    if (current_device() != communicator.device) ++elsewhere_;
  }
  int init(Communicator** out, int size, transport::nccl::UniqueId id, int rank, bool blocking) {
    const std::lock_guard lock(mutex_);
    *out =
        new Communicator{id, size, rank, current_device(), blocking, blocking ? 0 : faults_.polls, false, nullptr, {}};
    communicators_.insert(*out);
    ++made_;
    if (rank != faults_.absent_rank) joined_[id.bytes].insert(rank);
    if (faults_.init_result != 0) return faults_.init_result;
    return blocking ? transport::nccl::success : transport::nccl::in_progress;
  }
  int state_of(Communicator& communicator) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(communicator.asked, true)) ++asked_;
    if (communicator.polls_left-- > 0) return transport::nccl::in_progress;
    if (joined_[communicator.id.bytes].size() != static_cast<std::size_t>(communicator.size)) {
      return transport::nccl::in_progress;
    }
    if (faults_.init_state != 0) return faults_.init_state;
    const bool busy = std::ranges::any_of(communicator.operations, [](const auto& one) { return !one->over; });
    return busy ? faults_.round_state : 0;
  }
  // With a blocking communicator, it returns once all sides of the group have met.
  int end_group() {
    std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<FakeOperation>> awaited;
    for (Posted& posted : group()) {
      Communicator& communicator = *posted.communicator;
      check_device(communicator);
      if (communicator.stream == nullptr) check_settled(&communicator);
      communicator.polls_left = communicator.blocking ? 0 : faults_.polls;
      if (communicator.blocking) awaited.push_back(posted.operation);
      communicator.stream = posted.stream;
      std::erase_if(communicator.operations, [](const auto& one) { return one->over; });
      communicator.operations.push_back(posted.operation);
      posted.stream->items.push_back({posted.operation, nullptr});
      if (faults_.rounds_hang) continue;
      const auto [from, to] =
          posted.send ? std::pair(communicator.rank, posted.peer) : std::pair(posted.peer, communicator.rank);
      Waiting& waiting = waiting_[{communicator.id.bytes, from, to}];
      (posted.send ? waiting.sends : waiting.receives).push_back({posted.operation, posted.stream});
      meet(waiting);
    }
    group().clear();
    if (awaited.empty()) return transport::nccl::in_progress;
    ++blocked_;
    const auto met = [](const auto& operation) { return operation->over; };
    while (!released_ && !std::ranges::all_of(awaited, met)) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
    --blocked_;
    return transport::nccl::success;
  }
  [[nodiscard]] std::byte* behind(const std::byte* address) const {
    return behind_ ? behind_(address) : const_cast<std::byte*>(address);
  }
  void meet(Waiting& waiting) {
    while (!waiting.sends.empty() && !waiting.receives.empty()) {
      const auto [send, from] = waiting.sends.front();
      const auto [receive, into] = waiting.receives.front();
      if (!send->over && !receive->over) {
        if (send->bytes != receive->bytes) return;  // the other half never comes
        std::memcpy(behind(receive->into), behind(send->from), send->bytes);
      }
      send->over = receive->over = true;
      waiting.sends.pop_front();
      waiting.receives.pop_front();
      from->run();
      into->run();
    }
  }
  int abort(Communicator* communicator) {
    while (hangs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::lock_guard lock(mutex_);
    ++aborts_;
    check_device(*communicator);
    // Like kernels that see their abort flag: they end, and later operations do not meet them.
    for (auto& [pair, waiting] : waiting_) {
      for (auto* side : {&waiting.sends, &waiting.receives}) {
        std::erase_if(*side,
                      [&](const auto& one) { return std::ranges::count(communicator->operations, one.first) > 0; });
      }
    }
    for (const auto& operation : communicator->operations) operation->over = true;
    for (Stream* stream : streams_) stream->run();
    communicators_.erase(communicator);
    delete communicator;
    return 0;
  }
  bool hangs() {
    const std::lock_guard lock(mutex_);
    return faults_.abort_hangs && !released_;
  }

  static transport::nccl::Api make_api() {
    transport::nccl::Api api;
    api.version = [](int* version) {
      *version = 22907;
      return 0;
    };
    api.unique_id = [](transport::nccl::UniqueId* id) {
      static std::atomic<std::uint64_t> next = 1;
      const std::uint64_t number = next++;
      std::memcpy(id->bytes.data(), &number, sizeof number);
      return 0;
    };
    api.init = [](Communicator** out, int size, transport::nccl::UniqueId id, int rank,
                  transport::nccl::Config* config) {
      const bool fits = config->size == 48 && config->magic == 0xcafebeef && config->blocking >= 0;
      return fits ? instance().init(out, size, id, rank, config->blocking == 1)
                  : static_cast<int>(transport::nccl::invalid_argument);
    };
    api.finalize = [](Communicator*) { return static_cast<int>(transport::nccl::in_progress); };
    api.destroy = [](Communicator* communicator) {
      const std::lock_guard lock(instance().mutex_);
      ++instance().destroyed_;
      instance().check_device(*communicator);
      instance().communicators_.erase(communicator);
      delete communicator;
      return 0;
    };
    api.abort = [](Communicator* communicator) { return instance().abort(communicator); };
    api.async_error = [](Communicator* communicator, int* state) {
      *state = instance().state_of(*communicator);
      return 0;
    };
    api.count = [](Communicator* communicator, int* count) {
      *count = communicator->size;
      return 0;
    };
    api.user_rank = [](Communicator* communicator, int* rank) {
      *rank = communicator->rank;
      return 0;
    };
    api.device = [](Communicator* communicator, int* device) {
      *device = communicator->device;
      return 0;
    };
    api.group_start = [] { return 0; };
    api.group_end = [] { return instance().end_group(); };
    api.send = [](const void* from, std::size_t count, int, int peer, Communicator* communicator, void* stream) {
      auto operation =
          std::make_shared<FakeOperation>(FakeOperation{nullptr, static_cast<const std::byte*>(from), count});
      group().push_back({communicator, true, peer, static_cast<Stream*>(stream), std::move(operation)});
      return 0;
    };
    api.receive = [](void* into, std::size_t count, int, int peer, Communicator* communicator, void* stream) {
      auto operation = std::make_shared<FakeOperation>(FakeOperation{static_cast<std::byte*>(into), nullptr, count});
      group().push_back({communicator, false, peer, static_cast<Stream*>(stream), std::move(operation)});
      return 0;
    };
    api.error_string = [](int result) {
      return result == transport::nccl::remote_error ? "remote error" : "some error";
    };
    api.last_error = [](Communicator*) { return "what the fake was told to say"; };
    return api;
  }

  std::mutex mutex_;  // guards the members below, and all communicators and streams
  FakeNcclFaults faults_;
  std::map<std::array<char, 128>, std::set<int>> joined_;
  std::map<Pair, Waiting> waiting_;
  std::set<Stream*> streams_;
  std::set<Communicator*> communicators_;
  std::function<std::byte*(const std::byte*)> behind_;
  int early_ = 0;
  int elsewhere_ = 0;
  int made_ = 0;
  int asked_ = 0;
  int aborts_ = 0;
  int destroyed_ = 0;
  int blocked_ = 0;
  bool released_ = false;
};

/// One device whose memory is the host's.
class FakeNcclDevices final : public PartialDevices {
 public:
  [[nodiscard]] int device_count() const override { return 1; }
  std::unique_ptr<memory::DeviceStream> open_stream(int) override { return std::make_unique<FakeNccl::Stream>(); }
  void on_device(int device, const std::function<void()>& work) override { FakeNccl::with_device(device, work); }
};

inline std::unique_ptr<transport::Collective> open_fake_nccl(const transport::GroupSetup& setup) {
  return transport::nccl::open_with(setup, FakeNccl::api(), std::make_shared<FakeNcclDevices>());
}
inline Bytes make_fake_nccl_id() {
  transport::nccl::UniqueId id;
  FakeNccl::api().unique_id(&id);
  Bytes bytes;
  transport::append(bytes, id);
  return bytes;
}

}  // namespace shardwire::test
