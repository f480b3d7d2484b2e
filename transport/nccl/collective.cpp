// SPDX-License-Identifier: Apache-2.0
#include "transport/collective.hpp"

#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "support/wake_event.hpp"
#include "transport/bytes.hpp"
#include "transport/collective_check.hpp"
#include "transport/nccl/handles.hpp"

// Nothing here waits for NCCL: its communicators are non-blocking, and their state is polled after every call. A round
// is a group of sends and receives on a stream; the runtime reports when the stream has passed it.
namespace shardwire::transport::nccl {

namespace {

using std::chrono::milliseconds;

/// Readable when an event was reported, or when it is time to poll NCCL again.
class Wakeup {
 public:
  Wakeup()
      : poll_(::epoll_create1(EPOLL_CLOEXEC)), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    if (!poll_ || !timer_) throw Error(ErrorCode::out_of_resources, "cannot create descriptors of a group");
    for (const int part : {event_.descriptor(), timer_.get()}) {
      epoll_event event{};
      event.events = EPOLLIN;
      ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, part, &event);
    }
  }
  [[nodiscard]] int descriptor() const { return poll_.get(); }
  void wake() const { event_.signal(); }
  /// Zero: never.
  void every(milliseconds period) const {
    itimerspec spec{};
    spec.it_interval.tv_nsec = spec.it_value.tv_nsec = static_cast<long>(period.count()) * 1'000'000;
    ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
  }
  void forget() const {
    event_.clear();
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(timer_.get(), &count, sizeof count);
  }

 private:
  support::Descriptor poll_;
  support::WakeEvent event_;
  support::Descriptor timer_;
};

/// State shared with the callback that runs when the stream has passed a round.
struct Shared {
  Landing landing;
  Wakeup wakeup;
};

// Makes the group's device current for the call: NCCL restores the device that was current, and if none was, it selects
// device 0 and thereby creates a context there. NCCL reports a failed device.
template <typename Call>
void call_on(memory::DeviceRuntime& runtime, int device, Call call) {
  bool called = false;
  try {
    runtime.on_device(device, [&] {
      called = true;
      call();
    });
  } catch (const Error&) {
    if (!called) call();
  }
}

/// A group of sends and receives that is being posted to NCCL.
struct Posting {
  int result = success;
  const char* call = "ncclGroupEnd";  // the call that returned the error
  std::atomic<bool> over = false;     // no field changes any more
};

void post_group(const Api& api, std::span<const GroupSend> sends, std::span<const GroupReceive> receives,
                Communicator* communicator, void* stream, Posting& posting) {
  const auto note = [&](int result, const char* call) {
    if (result == success || result == in_progress || posting.result != success) return;
    posting.result = result;
    posting.call = call;
  };
  note(api.group_start(), "ncclGroupStart");
  if (posting.result != success) return;
  for (const GroupSend& send : sends) {
    note(api.send(send.memory.address, static_cast<std::size_t>(send.memory.bytes), type_of_bytes, send.to,
                  communicator, stream),
         "ncclSend");
  }
  for (const GroupReceive& receive : receives) {
    note(api.receive(receive.memory.address, static_cast<std::size_t>(receive.memory.bytes), type_of_bytes,
                     receive.from, communicator, stream),
         "ncclRecv");
  }
  note(api.group_end(), "ncclGroupEnd");  // also after an error: an open group captures all later calls
}

Fault fault_of(const Error& error) {
  return {error.code(), error.what()};
}

class NcclCollective final : public Collective {
 public:
  NcclCollective(const GroupSetup& setup, const Api& api, std::shared_ptr<memory::DeviceRuntime> runtime,
                 const Bounds& bounds)
      : api_(api),
        runtime_(std::move(runtime)),
        bounds_(bounds),
        rank_(setup.rank),
        size_(setup.size),
        device_(setup.device),
        adopted_(setup.communicator != nullptr),
        stream_(runtime_->open_stream(setup.device)),
        shared_(std::make_shared<Shared>()) {
    if (stream_->native() == nullptr) {
      throw Error(ErrorCode::unsupported, "the device runtime has no streams that NCCL could use");
    }
    if (adopted_) {
      adopt(static_cast<Communicator*>(setup.communicator));
    } else {
      begin(setup.id);
    }
    enter(State::starting);
  }
  ~NcclCollective() override { close(); }
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void round(std::span<const GroupSend> sends, std::span<const GroupReceive> receives, Completion done) override {
    if (under_way_) throw Error(ErrorCode::invalid_argument, "a round is under way already");
    check_round(sends, receives, size_);
    for (const GroupSend& send : sends) check_place(send.memory.place);
    for (const GroupReceive& receive : receives) check_place(receive.memory.place);
    if (aborted_) throw Error(ErrorCode::invalid_argument, "the group was aborted");
    sends_.assign(sends.begin(), sends.end());
    receives_.assign(receives.begin(), receives.end());
    // Both sides know the length, so neither posts an empty transfer.
    std::erase_if(sends_, [](const GroupSend& send) { return send.memory.empty(); });
    std::erase_if(receives_, [](const GroupReceive& receive) { return receive.memory.empty(); });
    done_ = std::move(done);
    under_way_ = true;
    if (state_ == State::idle) launch();
    if (state_ == State::over) shared_->wakeup.wake();
  }

  bool progress() override {
    switch (state_) {
      case State::starting:
        if (!settled()) return false;
        enter(State::idle);
        if (under_way_) launch();
        return true;
      case State::idle: return false;
      case State::posting: return posted();
      case State::launching:
        if (!settled()) return false;
        enter(State::running);
        queue_landing();
        return true;
      case State::running: return watch();
      case State::ending: return look_after_ending();
      case State::over:
        if (!under_way_) return false;
        finish(*why_);
        return true;
    }
    return false;
  }

  [[nodiscard]] int event_descriptor() const override { return shared_->wakeup.descriptor(); }
  bool arm() override {
    shared_->wakeup.forget();
    const bool posted = state_ == State::posting && posting_->over;
    return !(posted || landed() || (state_ == State::over && under_way_));
  }

  [[nodiscard]] bool is_stuck() const override { return stuck_; }

  void abort() override {
    if (aborted_) return;
    aborted_ = true;
    fail({ErrorCode::cancelled, "the group was aborted by this member"});
  }

 private:
  enum class State : std::uint8_t {
    starting,  ///< the members connect
    idle,
    posting,    ///< a round is being posted to NCCL
    launching,  ///< NCCL launches the round; the stream must not be touched
    running,    ///< the round is on the stream
    ending,     ///< the communicator is being aborted on another thread
    over,
  };

  // --- the communicator ---

  void begin(const Bytes& id) {
    ByteView rest = id;
    const auto unique = take<UniqueId>(rest);
    if (!unique || !rest.empty()) throw Error(ErrorCode::invalid_argument, "this is no id of an NCCL group");
    Config config;
    config.blocking = 0;
    int result = success;
    runtime_->on_device(device_, [&] { result = api_.init(&communicator_, size_, *unique, rank_, &config); });
    if (result == success || result == in_progress) return;
    const Fault fault = fault_of_result(result, "ncclCommInitRankConfig");
    if (communicator_ != nullptr) {
      give_up();
      ending_->wait(bounds_.destroy);  // nothing polls it any more
    }
    throw Error(fault.code, fault.message);
  }

  // A communicator of another library or another rank would move bytes to the wrong member.
  void adopt(Communicator* communicator) {
    communicator_ = communicator;
    const auto check = [&](int (*ask)(Communicator*, int*), const char* what, int expected) {
      int found = -1;
      const int result = ask(communicator_, &found);
      if (result == success && found == expected) return;
      throw Error(ErrorCode::invalid_argument,
                  result == success ? fmt::format("the communicator does not fit: {} says {}, and {} is needed", what,
                                                  found, expected)
                                    : fault_of_result(result, what).message);
    };
    check(api_.count, "ncclCommCount", size_);
    check(api_.user_rank, "ncclCommUserRank", rank_);
    check(api_.device, "ncclCommCuDevice", device_);
  }

  [[nodiscard]] Fault fault_of_result(int result, const char* what) const {
    const char* const last = api_.last_error(communicator_);
    return {result == remote_error ? ErrorCode::peer_lost : ErrorCode::transport_failed,
            fmt::format("{}: {}{}{}", what, api_.error_string(result), last == nullptr || *last == 0 ? "" : ": ",
                        last == nullptr ? "" : last)};
  }
  /// False after an error: the group is then being aborted.
  bool accept(int result, const char* what) {
    if (result == success || result == in_progress) return true;
    fail(fault_of_result(result, what));
    return false;
  }
  /// Whether NCCL has completed the requested call.
  bool settled() {
    int state = success;
    if (!accept(api_.async_error(communicator_, &state), "ncclCommGetAsyncError")) return false;
    return accept(state, state_ == State::starting ? "making the group" : "the group") && state != in_progress;
  }

  // --- a round ---

  void check_place(const MemoryPlace& place) const {
    if (place.kind == MemoryKind::cuda && place.device == device_) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("NCCL moves memory of device {} here: host memory and that of other "
                            "devices has to be copied there first",
                            device_));
  }

  void launch() {
    {
      const std::lock_guard lock(shared_->landing.mutex);
      shared_->landing.reported = false;
    }
    if (sends_.empty() && receives_.empty()) {
      enter(State::running);
      wake(*shared_, std::nullopt);
      return;
    }
    posting_ = std::make_shared<Posting>();
    launched_ = true;
    enter(State::posting);
    if (adopted_) return post_detached();
    call_on(*runtime_, device_,
            [&] { post_group(api_, sends_, receives_, communicator_, stream_->native(), *posting_); });
    posting_->over = true;
    posted();
  }
  // NCCL does not report whether the caller's communicator blocks; a blocking one waits here for the other members.
  void post_detached() {
    const DetachedCall call([&api = api_, sends = sends_, receives = receives_, communicator = communicator_,
                             stream = stream_->native(), posting = posting_, shared = shared_, runtime = runtime_,
                             device = device_] {
      call_on(*runtime, device, [&] { post_group(api, sends, receives, communicator, stream, *posting); });
      posting->over = true;
      shared->wakeup.wake();
    });
  }
  bool posted() {
    if (!posting_->over) return false;
    if (accept(posting_->result, posting_->call)) enter(State::launching);
    return true;
  }

  static void wake(Shared& shared, const std::optional<Error>& error) {
    {
      const std::lock_guard lock(shared.landing.mutex);
      shared.landing.reported = true;
      shared.landing.fault = error ? std::optional(fault_of(*error)) : std::nullopt;
    }
    shared.wakeup.wake();
  }
  void queue_landing() {
    try {
      stream_->call_when_done([shared = shared_](const std::optional<Error>& error) { wake(*shared, error); });
      queued_ = true;
    } catch (const Error& error) {
      fail(fault_of(error));
      // On a device that has failed permanently nothing is under way, and no callback runs.
      if (error.code() != ErrorCode::transport_failed) return;
      queued_ = true;
      wake(*shared_, error);
    }
  }
  [[nodiscard]] bool landed() const {
    const std::lock_guard lock(shared_->landing.mutex);
    return state_ == State::running && shared_->landing.reported;
  }

  bool watch() {
    if (!landed()) {
      settled();  // detects a peer that is gone, if anything does
      return state_ != State::running;
    }
    queued_ = launched_ = false;
    std::optional<Fault> fault;
    {
      const std::lock_guard lock(shared_->landing.mutex);
      fault = std::exchange(shared_->landing.fault, std::nullopt);
    }
    if (fault) {
      fail(*fault);
    } else {
      enter(State::idle);
      finish(std::nullopt);
    }
    return true;
  }

  void finish(const Outcome& outcome) {
    under_way_ = false;
    sends_.clear();
    receives_.clear();
    if (const Completion done = std::exchange(done_, nullptr)) done(outcome);
  }

  // --- the end ---

  void enter(State state) {
    state_ = state;
    const bool asks =
        state == State::starting || state == State::posting || state == State::launching || state == State::ending;
    shared_->wakeup.every(asks ? milliseconds(1) : milliseconds(state == State::running ? 20 : 0));
  }

  /// Ends the round under way with `why` once nothing touches its memory any more.
  void fail(Fault why) {
    if (state_ == State::ending || state_ == State::over) return;
    why_ = std::move(why);
    enter(State::ending);
    ending_until_ = WallClock::now() + bounds_.abort;
    // Only the creator of a communicator may abort it; the caller's communicator runs to its end.
    if (!adopted_) give_up();
  }
  void give_up() {
    ending_.emplace(
        [&api = api_, runtime = runtime_, device = device_, communicator = std::exchange(communicator_, nullptr)] {
          call_on(*runtime, device, [&] { api.abort(communicator); });
        });
  }
  /// Whether the stream has no work of a round left.
  bool ended() {
    if (ending_ ? !ending_->over() : launching()) return false;
    if (!launched_) return true;
    if (!queued_) queue_landing();
    const std::lock_guard lock(shared_->landing.mutex);
    return shared_->landing.reported;
  }
  /// For the caller's communicator, which is never aborted: whether the stream must not be touched yet.
  [[nodiscard]] bool launching() const {
    if (!launched_ || queued_) return false;
    if (posting_ && !posting_->over) return true;
    int state = success;
    return api_.async_error(communicator_, &state) == success && state == in_progress;
  }
  bool look_after_ending() {
    const bool over = ended();
    if (!over && WallClock::now() < ending_until_) return false;
    if (!over) {
      stuck_ = true;
      why_->message += adopted_ ? "; the caller's communicator has not come to an end, so its round may still write"
                                : "; NCCL has not ended its part in time, so it may still write";
    }
    enter(State::over);
    if (under_way_) finish(*why_);
    return true;
  }

  void close() {
    if (state_ == State::ending) {
      while (!ended() && WallClock::now() < ending_until_) std::this_thread::sleep_for(milliseconds(1));
      stuck_ = !ended();
    }
    if (state_ != State::idle && state_ != State::over && state_ != State::ending) {
      fail({ErrorCode::cancelled, "the group is closed"});
      return close();
    }
    if (communicator_ != nullptr && !adopted_) {
      // The last send may still be on its way to a peer that has not received it; this waits for that.
      const DetachedCall end([&api = api_, runtime = runtime_, device = device_, communicator = communicator_] {
        call_on(*runtime, device, [&] { destroy(api, communicator); });
      });
      end.wait(bounds_.destroy);
    }
    // Waiting for a stream that hangs would hang too.
    if (stuck_) [[maybe_unused]]
      auto* const left_behind = stream_.release();
  }
  static void destroy(const Api& api, Communicator* communicator) {
    int state = api.finalize(communicator);
    while (state == in_progress || state == success) {
      if (api.async_error(communicator, &state) != success || state != in_progress) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (state == success) {
      api.destroy(communicator);
    } else {
      api.abort(communicator);
    }
  }

  const Api& api_;
  std::shared_ptr<memory::DeviceRuntime> runtime_;  // owners: this process and its users
  Bounds bounds_;
  int rank_;
  int size_;
  int device_;
  bool adopted_;
  std::unique_ptr<memory::DeviceStream> stream_;
  std::shared_ptr<Shared> shared_;  // owners: this and the callback that runs when the stream has passed a round
  Communicator* communicator_ = nullptr;
  State state_ = State::starting;
  std::vector<GroupSend> sends_;  // of the round under way, which may wait for the group
  std::vector<GroupReceive> receives_;
  Completion done_;
  bool under_way_ = false;            // a round, until its completion runs
  bool launched_ = false;             // NCCL has received it, at least in part
  std::shared_ptr<Posting> posting_;  // the post of that round; owners: this and a thread that may be abandoned
  bool queued_ = false;               // the stream reports when it has passed the round
  bool aborted_ = false;
  bool stuck_ = false;
  std::optional<Fault> why_;
  std::optional<DetachedCall> ending_;
  WallClock::time_point ending_until_;
};

}  // namespace

std::unique_ptr<Collective> open_with(const GroupSetup& setup, const Api& api,
                                      std::shared_ptr<memory::DeviceRuntime> runtime, const Bounds& bounds) {
  return std::make_unique<NcclCollective>(setup, api, std::move(runtime), bounds);
}

}  // namespace shardwire::transport::nccl
