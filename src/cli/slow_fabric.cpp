// SPDX-License-Identifier: Apache-2.0
#include "cli/slow_fabric.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "support/descriptors.hpp"
#include "support/system_error.hpp"

namespace shardwire::cli {
namespace {

using transport::ByteView;
using transport::Completion;
using transport::ConstMemory;
using transport::WallClock;

constexpr double share = 0.01;
constexpr double assumed_bytes_per_second = 1e9;  // of a fabric that has sent nothing yet

/// Bytes that were sent and the time for which at least one message was under way.
class Speed {
 public:
  void began(ByteCount bytes) {
    if (under_way_++ == 0) since_ = WallClock::now();
    bytes_ += bytes;
  }
  void ended() {
    if (--under_way_ == 0) busy_ += WallClock::now() - since_;
  }
  [[nodiscard]] double bytes_per_second() const {
    const double seconds = std::chrono::duration<double>(busy_).count();
    return seconds > 0 ? static_cast<double>(bytes_) / seconds : assumed_bytes_per_second;
  }

 private:
  int under_way_ = 0;
  ByteCount bytes_ = 0;
  WallClock::time_point since_{};
  WallClock::duration busy_{};
};

/// A message that waits for its turn.
struct Waiting {
  transport::Endpoint* endpoint = nullptr;
  std::vector<std::byte> header;
  std::vector<ConstMemory> payload;
  Completion done;
  WallClock::time_point due{};
  bool aborted = false;
};

/// The messages of one fabric, for all of its endpoints.
class Sends {
 public:
  Sends(const std::atomic<bool>& slow, std::optional<double> bytes_per_second)
      : slow_(slow), bytes_per_second_(bytes_per_second), timer_(::timerfd_create(CLOCK_MONOTONIC, flags)) {
    if (!timer_) support::throw_errno("timerfd_create");
  }

  void send(transport::Endpoint& endpoint, ByteView header, std::span<const ConstMemory> payload, Completion done) {
    const ByteCount bytes = transport::total_bytes(payload);
    if (!slow_ && waiting_.empty()) return post(endpoint, header, payload, bytes, std::move(done));
    if (rate_ == 0) rate_ = bytes_per_second_.value_or(share * speed_->bytes_per_second());
    const std::chrono::duration<double> takes(static_cast<double>(bytes) / rate_);
    last_due_ = std::max(last_due_, WallClock::now()) + std::chrono::duration_cast<WallClock::duration>(takes);
    waiting_.push_back(
        {&endpoint, {header.begin(), header.end()}, {payload.begin(), payload.end()}, std::move(done), last_due_});
  }
  /// Posts what is due, and fails what was aborted; false if there is nothing to do.
  bool progress() {
    if (std::exchange(armed_, false)) {
      std::uint64_t expirations = 0;
      [[maybe_unused]] const ssize_t taken = ::read(timer_.get(), &expirations, sizeof expirations);
    }
    bool any = false;
    while (!waiting_.empty() && (waiting_.front().aborted || waiting_.front().due <= WallClock::now())) {
      const Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      any = true;
      if (next.aborted) {
        next.done(transport::Fault{ErrorCode::cancelled, "the endpoint was aborted"});
      } else {
        next.endpoint->send(next.header, next.payload, next.done);
      }
    }
    return any;
  }
  /// The messages of this endpoint fail, before all others.
  void abort(const transport::Endpoint& endpoint) {
    for (Waiting& one : waiting_) one.aborted = one.aborted || one.endpoint == &endpoint;
    std::stable_partition(waiting_.begin(), waiting_.end(), [](const Waiting& one) { return one.aborted; });
  }
  /// Drops the messages of this endpoint.
  void remove(const transport::Endpoint& endpoint) {
    std::erase_if(waiting_, [&](const Waiting& one) { return one.endpoint == &endpoint; });
  }
  [[nodiscard]] int timer() const { return timer_.get(); }
  /// Makes timer() readable when the next message is due. False if one is due already.
  bool arm() {
    if (waiting_.empty()) return true;
    if (waiting_.front().aborted) return false;
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(waiting_.front().due - WallClock::now());
    if (left.count() <= 0) return false;
    itimerspec spec{};
    spec.it_value = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
    return armed_ = true;
  }

 private:
  static constexpr int flags = TFD_CLOEXEC | TFD_NONBLOCK;

  void post(transport::Endpoint& endpoint, ByteView header, std::span<const ConstMemory> payload, ByteCount bytes,
            Completion done) {
    speed_->began(bytes);
    endpoint.send(header, payload, [speed = speed_, done = std::move(done)](const transport::Outcome& outcome) {
      speed->ended();
      done(outcome);
    });
  }

  const std::atomic<bool>& slow_;
  std::optional<double> bytes_per_second_;
  support::Descriptor timer_;
  std::shared_ptr<Speed> speed_ = std::make_shared<Speed>();  // owners: this and messages under way
  double rate_ = 0;                                           // once it is slow
  WallClock::time_point last_due_{};
  std::deque<Waiting> waiting_;
  bool armed_ = false;  // the timer
};

class SlowableEndpoint final : public transport::Endpoint {
 public:
  SlowableEndpoint(std::unique_ptr<transport::Endpoint> inner, std::shared_ptr<Sends> sends)
      : inner_(std::move(inner)), sends_(std::move(sends)) {}
  ~SlowableEndpoint() override { sends_->remove(*inner_); }
  SlowableEndpoint(const SlowableEndpoint&) = delete;
  SlowableEndpoint& operator=(const SlowableEndpoint&) = delete;

  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override {
    sends_->send(*inner_, header, payload, std::move(done));
  }
  std::unique_ptr<transport::RemoteRegion> import_region(transport::RegionKey key, ByteCount size_bytes) override {
    return inner_->import_region(std::move(key), size_bytes);
  }
  void read(const transport::RemoteRegion& region, std::span<const transport::ReadRange> ranges,
            Completion done) override {
    inner_->read(region, ranges, std::move(done));
  }
  [[nodiscard]] bool failed() const override { return inner_->failed(); }
  [[nodiscard]] transport::Path path(const transport::MemoryPlace& place) const override { return inner_->path(place); }
  [[nodiscard]] std::string why_not_into(const memory::DeviceAllocation& allocation) const override {
    return inner_->why_not_into(allocation);
  }
  void abort() override {
    sends_->abort(*inner_);
    inner_->abort();
  }

 private:
  std::unique_ptr<transport::Endpoint> inner_;
  std::shared_ptr<Sends> sends_;  // owners: the fabric and its endpoints
};

class SlowableFabric final : public transport::Fabric {
 public:
  SlowableFabric(std::unique_ptr<transport::Fabric> inner, const std::atomic<bool>& slow,
                 std::optional<double> bytes_per_second)
      : inner_(std::move(inner)),
        sends_(std::make_shared<Sends>(slow, bytes_per_second)),
        events_(inner_->event_descriptor() < 0 ? -1 : ::epoll_create1(EPOLL_CLOEXEC)) {
    if (inner_->event_descriptor() < 0) return;
    for (const int one : {inner_->event_descriptor(), sends_->timer()}) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = one;
      if (!events_ || ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, one, &event) != 0) support::throw_errno("epoll_ctl");
    }
  }

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] std::string version() const override { return inner_->version(); }
  [[nodiscard]] std::string domain() const override { return inner_->domain(); }
  [[nodiscard]] Bytes address() const override { return inner_->address(); }
  [[nodiscard]] transport::SocketNeeds sockets() const override { return inner_->sockets(); }
  std::unique_ptr<transport::Region> allocate(ByteCount size_bytes, const transport::MemoryPlace& place) override {
    return inner_->allocate(size_bytes, place);
  }
  std::unique_ptr<transport::Region> adopt(const transport::Memory& memory) override { return inner_->adopt(memory); }
  std::unique_ptr<transport::Region> adopt_shared(std::shared_ptr<memory::SharedMemory> memory) override {
    return inner_->adopt_shared(std::move(memory));
  }
  [[nodiscard]] bool adopts_unasked(const transport::MemoryPlace& place) const override {
    return inner_->adopts_unasked(place);
  }
  std::unique_ptr<transport::Endpoint> connect(transport::PeerAddress peer) override {
    return std::make_unique<SlowableEndpoint>(inner_->connect(std::move(peer)), sends_);
  }
  void on_message(transport::MessageHandler handler) override { inner_->on_message(std::move(handler)); }
  bool progress() override {
    const bool posted = sends_->progress();
    return inner_->progress() || posted;
  }
  [[nodiscard]] int event_descriptor() const override { return events_.get(); }
  bool arm() override { return sends_->arm() && inner_->arm(); }
  [[nodiscard]] std::string take_warning() override { return inner_->take_warning(); }

 private:
  std::unique_ptr<transport::Fabric> inner_;
  std::shared_ptr<Sends> sends_;  // owners: this and its endpoints
  support::Descriptor events_;
};

}  // namespace

std::unique_ptr<transport::Fabric> slowable(std::unique_ptr<transport::Fabric> inner, const std::atomic<bool>& slow,
                                            std::optional<double> bytes_per_second) {
  return std::make_unique<SlowableFabric>(std::move(inner), slow, bytes_per_second);
}

}  // namespace shardwire::cli
