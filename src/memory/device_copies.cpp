// SPDX-License-Identifier: Apache-2.0
#include "memory/device_copies.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "memory/digest.hpp"

namespace shardwire::memory {

namespace {

// Two for each direction: one is filled while the other is emptied.
constexpr std::size_t enough_slots = 4;

std::shared_ptr<DeviceRuntime> require_runtime() {
  const FoundRuntime found = device_runtime();
  if (found.runtime) return found.runtime;
  throw Error(ErrorCode::unsupported, "device memory cannot be copied: " + found.why_not);
}

bool is_device(int place) {
  return place >= 0;
}

bool are_two_devices(const QueuedCopy& copy) {
  return is_device(copy.source_device) && is_device(copy.target_device) && copy.source_device != copy.target_device;
}

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

void put(std::span<const Digest128> digests, std::span<const std::size_t> indices, CopyResult& result) {
  for (std::size_t i = 0; i < indices.size(); ++i) result.digests[indices[i]] = digests[i];
}

}  // namespace

/// What the runtime's threads leave for poll(). They hold no more than this: what ends with a batch belongs to the session's
/// thread.
class DeviceCopies::Inbox {
 public:
  struct News {
    std::uint64_t ticket = 0;
    std::optional<Error> error;
  };

  explicit Inbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void post(News news) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    news_.push_back(std::move(news));
    wake_();
  }
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return news_.size();
  }
  std::optional<News> take() {
    const std::lock_guard lock(mutex_);
    if (news_.empty()) return std::nullopt;
    News first = std::move(news_.front());
    news_.pop_front();
    return first;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  mutable std::mutex mutex_;  // guards what follows, and calls of wake_
  std::function<void()> wake_;
  std::deque<News> news_;
  bool closed_ = false;
};

/// A batch until it is done.
struct DeviceCopies::Running {
  CopyBatch batch;
  Done done;
  std::vector<QueuedCopy> copies{};  // until they are sorted
  CopyResult result{};
  std::size_t open = 1;                 // pieces of work; one for submit() itself
  std::vector<QueuedCopy> to_digest{};  // their source sides, by index, once all copies are made
  bool digested = false;                // or being digested
};

/// Copies by way of one slot.
struct DeviceCopies::Hop {
  struct Part {
    StridedCopy copy;
    const std::byte* source;
    std::byte* target;
    ByteCount at;  // in the slot
  };
  std::shared_ptr<Running> running;  // owners: what is left to do of the batch
  int source_device = on_host;       // one of both is a device
  int target_device = on_host;
  std::vector<Part> parts{};
  ByteCount bytes = 0;

  /// Of what fills the slot, or empties it.
  [[nodiscard]] int device_of_half(bool fills) const { return fills ? source_device : target_device; }
  [[nodiscard]] std::vector<DeviceCopy> device_half(std::byte* slot, bool fills) const {
    std::vector<DeviceCopy> copies;
    copies.reserve(parts.size());
    for (const Part& part : parts) {
      if (fills) {
        copies.push_back({part.copy.into_dense(), part.source, slot + part.at});
      } else {
        copies.push_back({part.copy.from_dense(), slot + part.at, part.target});
      }
    }
    return copies;
  }
  void copy_host_half(std::byte* slot, bool fills) const {
    const Stores stores = fills ? Stores::cached : running->batch.stores;
    for (const Part& part : parts) {
      if (fills) {
        part.copy.into_dense().run_all(part.source, slot + part.at, stores);
      } else {
        part.copy.from_dense().run_all(slot + part.at, part.target, stores);
      }
    }
  }
};

/// What one device has to do with a batch.
struct DeviceCopies::Share {
  std::vector<DeviceCopy> direct;
  std::deque<Hop> hops;

  void add_hop(const std::shared_ptr<Running>& running, const QueuedCopy& copy, ByteCount slot_bytes) {
    std::vector<StridedCopy> parts;
    copy.copy.split(slot_bytes, parts);
    for (const StridedCopy& part : parts) {
      const bool fits = !hops.empty() && hops.back().source_device == copy.source_device &&
                        hops.back().target_device == copy.target_device &&
                        hops.back().bytes + part.bytes() <= slot_bytes;
      Hop& hop =
          fits ? hops.back()
               : hops.emplace_back(
                     Hop{.running = running, .source_device = copy.source_device, .target_device = copy.target_device});
      hop.parts.push_back({part, copy.source, copy.target, hop.bytes});
      hop.bytes += part.bytes();
    }
  }
};

struct DeviceCopies::Lane {
  /// What `post` gives the stream, and `then` when that is over.
  struct Work {
    std::function<void(DeviceStream&)> post;
    Then then;
  };
  int device = on_host;
  bool opening = false;
  std::unique_ptr<DeviceStream> stream{};
  std::deque<Work> work{};  // that waits for the stream
  std::deque<Hop> hops{};   // that wait for a slot
  bool advancing = false;
  bool again = false;  // there is more to do

  class Advancing {
   public:
    explicit Advancing(Lane& lane) : lane_(lane) { lane.advancing = true; }
    ~Advancing() { lane_.advancing = false; }
    Advancing(const Advancing&) = delete;
    Advancing& operator=(const Advancing&) = delete;

   private:
    Lane& lane_;
  };
};

/// A stream on its way out, which waits for what it is at.
/// Threads: any.
struct DeviceCopies::Ending {
  std::mutex mutex;
  std::unique_ptr<DeviceStream> stream;  // guarded by mutex

  void end() {
    const std::lock_guard lock(mutex);
    stream.reset();
  }
};

/// Pinned memory, freed on the copier's threads as long as there are any: that takes as long as making it did, and waits for
/// devices.
class DeviceCopies::Pinned final : public DeviceMemory {
 public:
  Pinned(std::shared_ptr<DeviceMemory> memory, std::shared_ptr<Copier*> freed_by)
      : memory_(std::move(memory)), freed_by_(std::move(freed_by)) {}
  ~Pinned() override {
    if (*freed_by_ == nullptr) return;
    try {
      (*freed_by_)->submit([memory = std::move(memory_)] {}, nullptr);  // a job lets go of what it holds on its thread
    } catch (const std::exception&) {
      return;
    }
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  [[nodiscard]] std::byte* address() const override { return memory_->address(); }
  [[nodiscard]] ByteCount bytes() const override { return memory_->bytes(); }

 private:
  std::shared_ptr<DeviceMemory> memory_;  // owners: this, then the job
  std::shared_ptr<Copier*> freed_by_;
};

DeviceCopies::DeviceCopies(Copier& copier, std::function<void()> wake, ByteCount pinned_budget_bytes)
    : copier_(copier),
      host_(copier),
      inbox_(std::make_shared<Inbox>(std::move(wake))),
      freed_by_(std::make_shared<Copier*>(&copier)),
      slot_bytes_(std::max<ByteCount>(1, pinned_budget_bytes / enough_slots)),
      max_slots_(static_cast<std::size_t>(pinned_budget_bytes / slot_bytes_)) {
}

DeviceCopies::~DeviceCopies() {
  stop();
}

void DeviceCopies::stop() {
  inbox_->close();
  *freed_by_ = nullptr;
  lanes_.clear();
  for (const auto& [ticket, ending] : ending_) ending->end();
  ending_.clear();
  under_way_.clear();
}

// Requires: the lane's stream is open.
template <typename Post>
void DeviceCopies::queue(Lane& lane, const Post& post, Then then) {
  const std::uint64_t ticket = ++last_ticket_;
  under_way_.emplace(ticket, std::move(then));
  try {
    post(*lane.stream);
    lane.stream->call_when_done([inbox = inbox_, ticket](const std::optional<Error>& error) {
      inbox->post({ticket, error});
    });
  } catch (const Error& error) {
    end_stream(lane, ticket, error);
  } catch (const std::exception& error) {
    end_stream(lane, ticket, Error(ErrorCode::out_of_resources, error.what()));
  }
}

// A part of the work may be queued, and nobody would say when that is over. The next piece of work opens another stream.
void DeviceCopies::end_stream(Lane& lane, std::uint64_t ticket, const Error& why) {
  const auto ending = std::make_shared<Ending>();
  ending->stream = std::move(lane.stream);
  ending_.emplace(ticket, ending);
  const auto ended = [this, ticket, why](const std::exception_ptr&) {
    ending_.erase(ticket);
    over(ticket, std::make_exception_ptr(why));
  };
  try {
    copier_.submit([ending] { ending->end(); }, ended);
  } catch (const std::exception&) {
    ending->end();
    ending_.erase(ticket);
    inbox_->post({ticket, why});
  }
}

bool DeviceCopies::over(std::uint64_t ticket, const std::exception_ptr& error) {
  const auto found = under_way_.extract(ticket);
  if (found.empty()) return false;
  found.mapped()(error);
  return true;
}

void DeviceCopies::submit(CopyBatch batch, Done done) {
  if (!batch.on_devices) return host_.submit(std::move(batch), std::move(done));
  // owners: what is left to do of it
  const auto running = std::make_shared<Running>(Running{std::move(batch), std::move(done)});
  try {
    running->copies.reserve(running->batch.count);
    for (std::size_t i = 0; i < running->batch.count; ++i) running->copies.push_back(running->batch.copy(i));
    if (auto unknown = unknown_access(running->copies); !unknown.empty()) {
      return ask_for_access(running, std::move(unknown));
    }
  } catch (const std::exception&) {
    running->result.error = std::current_exception();
    running->copies.clear();
  }
  submit_on_devices(running);
}

void DeviceCopies::submit_on_devices(const std::shared_ptr<Running>& running) {
  std::map<int, Share> shares;
  std::vector<QueuedCopy> host_only;
  try {
    sort(running, shares, host_only);
    running->open += shares.size() + (host_only.empty() ? 0 : 1);
  } catch (const std::exception&) {
    running->result.error = std::current_exception();
    shares.clear();
    host_only.clear();
  }
  // Nothing may end before submit() has returned.
  under_way_.emplace(++last_ticket_, [this, running](const std::exception_ptr& error) { finish(running, error); });
  inbox_->post({last_ticket_, std::nullopt});
  if (!host_only.empty()) {
    const std::size_t count = host_only.size();
    try {
      host_.submit({.count = count,
                    .copy = [list = std::move(host_only)](std::size_t index) { return list[index]; },
                    .stores = running->batch.stores},
                   [this, running](const CopyResult& result) { finish(running, result.error); });
    } catch (const std::exception&) {
      finish(running, std::current_exception());
    }
  }
  for (auto& [device, share] : shares) {
    Lane& lane = lane_of(device);
    running->open += share.hops.size();
    if (share.direct.empty()) {
      --running->open;
    } else {
      lane.work.push_back({[copies = std::move(share.direct)](DeviceStream& stream) { stream.copy(copies); },
                           [this, running](const std::exception_ptr& error) { finish(running, error); }});
    }
    std::move(share.hops.begin(), share.hops.end(), std::back_inserter(lane.hops));
    advance(lane);
  }
}

DeviceCopies::DevicePairs DeviceCopies::unknown_access(const std::vector<QueuedCopy>& copies) const {
  DevicePairs unknown;
  for (const QueuedCopy& copy : copies) {
    const std::pair devices{copy.target_device, copy.source_device};
    if (are_two_devices(copy) && !copy.source_apart && !reaches_.contains(devices)) unknown.insert(devices);
  }
  return unknown;
}

bool DeviceCopies::reaches(int device, int other) const {
  const auto known = reaches_.find({device, other});
  return known != reaches_.end() && known->second;
}

// It takes as long as opening a stream. What cannot be asked is not accessed this time.
void DeviceCopies::ask_for_access(const std::shared_ptr<Running>& running, DevicePairs pairs) {
  const auto answers = std::make_shared<std::map<std::pair<int, int>, bool>>();  // owners: the job and its completion
  copier_.submit(
      [answers, pairs = std::move(pairs)] {
        const auto runtime = require_runtime();
        for (const auto& pair : pairs) {
          try {
            answers->emplace(pair, runtime->enable_peer_access(pair.first, pair.second));
          } catch (const Error&) {
            continue;
          }
        }
      },
      [this, running, answers](const std::exception_ptr&) {
        reaches_.merge(*answers);
        submit_on_devices(running);
      });
}

void DeviceCopies::sort(const std::shared_ptr<Running>& running, std::map<int, Share>& shares,
                        std::vector<QueuedCopy>& host_only) {
  const CopyWork work = running->batch.work;
  const bool flat = running->batch.digest == DigestKind::flat;
  for (const QueuedCopy& next : std::exchange(running->copies, {})) {
    if (work == CopyWork::digest) running->to_digest.push_back(next);
    if (work == CopyWork::copy_and_digest) {
      running->to_digest.push_back({next.copy.reversed(), next.target, nullptr, next.target_device});
    }
    if (work != CopyWork::copy && flat && is_device(running->to_digest.back().source_device)) {
      throw Error(ErrorCode::unsupported, "a device digests by trees only, and another kind is asked for");
    }
    if (work == CopyWork::digest || next.copy.bytes() == 0) continue;
    const int device = is_device(next.target_device) ? next.target_device : next.source_device;
    const bool out_of_reach =
        are_two_devices(next) && (next.source_apart || !reaches(next.target_device, next.source_device));
    if (!is_device(device)) {
      host_only.push_back(next);
    } else if (next.source_device == on_host || next.target_device == on_host || out_of_reach) {
      // It waits where the slot is filled first.
      shares[out_of_reach ? next.source_device : device].add_hop(running, next, slot_bytes_);
    } else {
      shares[device].direct.push_back({next.copy, next.source, next.target});
    }
  }
}

void DeviceCopies::finish(const std::shared_ptr<Running>& running, const std::exception_ptr& error) {
  if (error && !running->result.error) running->result.error = error;
  if (--running->open > 0) return;
  if (!running->result.error && !std::exchange(running->digested, true) && !running->to_digest.empty()) {
    return digest(running);
  }
  running->done(running->result);
}

void DeviceCopies::digest(const std::shared_ptr<Running>& running) {
  running->result.digests.resize(running->to_digest.size());
  std::map<int, std::vector<std::size_t>> indices;  // by device, all of the host's together
  for (std::size_t i = 0; i < running->to_digest.size(); ++i) {
    const QueuedCopy& one = running->to_digest[i];
    indices[is_device(one.source_device) && one.copy.bytes() > 0 ? one.source_device : on_host].push_back(i);
  }
  running->open = indices.size();
  for (auto& [device, list] : indices) {
    if (!is_device(device)) {
      digest_on_host(running, std::move(list));
      continue;
    }
    digest_on_device(lane_of(device), running, std::move(list));
  }
}

void DeviceCopies::digest_on_host(const std::shared_ptr<Running>& running, std::vector<std::size_t> indices) {
  // owners: the job and its completion
  const auto taken = std::make_shared<CopyResult>();
  const auto began = std::chrono::steady_clock::now();
  try {
    copier_.submit(
        [taken, running, indices] {
          for (const std::size_t i : indices) {
            const QueuedCopy& one = running->to_digest[i];
            taken->digests.push_back(digest_runs(one.copy, one.source, running->batch.digest));
          }
        },
        [this, taken, running, indices, began](const std::exception_ptr& error) {
          running->result.digest_seconds += seconds_since(began);
          if (!error) put(taken->digests, indices, running->result);
          finish(running, error);
        });
  } catch (const std::exception&) {
    finish(running, std::current_exception());
  }
}

void DeviceCopies::digest_on_device(Lane& lane, const std::shared_ptr<Running>& running,
                                    std::vector<std::size_t> indices) {
  struct Taken {
    std::vector<Digest128> digests;
    std::chrono::steady_clock::time_point began{};
  };
  // owner: what follows, which outlives the stream's work
  const auto taken = std::make_shared<Taken>(Taken{.digests = std::vector<Digest128>(indices.size())});
  std::vector<DeviceCopy> reads;
  reads.reserve(indices.size());
  for (const std::size_t i : indices) {
    const QueuedCopy& one = running->to_digest[i];
    reads.push_back({one.copy, one.source, nullptr});
  }
  lane.work.push_back({[taken, reads = std::move(reads)](DeviceStream& stream) {
                         taken->began = std::chrono::steady_clock::now();
                         stream.digest(reads, taken->digests);
                       },
                       [this, running, taken, indices = std::move(indices)](const std::exception_ptr& error) {
                         if (!error) {
                           running->result.digest_seconds += seconds_since(taken->began);
                           put(taken->digests, indices, running->result);
                         }
                         finish(running, error);
                       }});
  advance(lane);
}

// owners of the events: who lends them and the job
void DeviceCopies::when_ready(std::shared_ptr<const LentEvents> events, Then then) {
  const std::uint64_t ticket = ++last_ticket_;
  under_way_.emplace(ticket, std::move(then));
  const auto happened = [inbox = inbox_, ticket](const std::optional<Error>& error) { inbox->post({ticket, error}); };
  copier_.submit([happened, lent = std::move(events)] { memory::when_ready(*lent, happened); },
                 [this, ticket](const std::exception_ptr& error) {
                   if (error) over(ticket, error);
                 });
}

// What is no event is its caller's failure alone, told once those before it are past: the stream goes on.
void DeviceCopies::record(std::shared_ptr<const LentEvents> events, int device, Then then) {
  const auto refused = std::make_shared<std::exception_ptr>();  // owners: both halves
  Lane& lane = lane_of(device);
  lane.work.push_back(
      {[events = std::move(events), device, refused](DeviceStream& stream) {
         try {
           events->record_on(stream, device);
         } catch (const Error&) {
           *refused = std::current_exception();
         }
       },
       [refused, then = std::move(then)](const std::exception_ptr& error) { then(*refused ? *refused : error); }});
  advance(lane);
}

unsigned DeviceCopies::poll() {
  unsigned ran = host_.poll();
  // As in Copier::poll().
  for (std::size_t left = inbox_->size(); left > 0; --left) {
    const std::optional<Inbox::News> news = inbox_->take();
    if (!news) break;
    if (over(news->ticket, news->error ? std::make_exception_ptr(*news->error) : nullptr)) ++ran;
  }
  return ran;
}

// --- one device ---

DeviceCopies::Lane& DeviceCopies::lane_of(int device) {
  return lanes_.try_emplace(device, Lane{.device = device}).first->second;
}

void DeviceCopies::open(Lane& lane) {
  if (std::exchange(lane.opening, true)) return;
  // owners: the job and its completion
  const auto opened = std::make_shared<std::unique_ptr<DeviceStream>>();
  try {
    copier_.submit([opened, device = lane.device] { *opened = require_runtime()->open_stream(device); },
                   [this, opened, device = lane.device](const std::exception_ptr& error) {
                     Lane& own = lanes_.at(device);
                     own.opening = false;
                     if (error) return fail_waiting(own, error);
                     own.stream = std::move(*opened);
                     advance(own);
                   });
  } catch (const std::exception&) {
    lane.opening = false;
    fail_waiting(lane, std::current_exception());
  }
}

// What fails on the way may call this again: that would be as deep as there are hops.
void DeviceCopies::advance(Lane& lane) {
  lane.again = true;
  if (lane.advancing) return;
  const Lane::Advancing now(lane);
  while (std::exchange(lane.again, false)) advance_once(lane);
}

void DeviceCopies::advance_once(Lane& lane) {
  drop_failed_hops(lane);
  while (lane.stream && !lane.work.empty()) {
    const Lane::Work next = std::move(lane.work.front());
    lane.work.pop_front();
    queue(lane, next.post, next.then);
  }
  if (lane.work.empty() && lane.hops.empty()) return;
  if (!lane.stream) return open(lane);
  Slot slot = take_slot();
  if (!slot) return;
  Hop next = std::move(lane.hops.front());
  lane.hops.pop_front();
  lane.again = true;
  begin(std::move(next), std::move(slot));
}

// Those in front: what follows is looked at when it is its turn.
void DeviceCopies::drop_failed_hops(Lane& lane) {
  while (!lane.hops.empty() && lane.hops.front().running->result.error) {
    const auto running = lane.hops.front().running;
    lane.hops.pop_front();
    finish(running, nullptr);
  }
}

void DeviceCopies::advance_all() {
  for (auto& [device, lane] : lanes_) advance(lane);
}

void DeviceCopies::fail_waiting(Lane& lane, const std::exception_ptr& error) {
  const auto work = std::exchange(lane.work, {});
  const auto hops = std::exchange(lane.hops, {});
  for (const Lane::Work& one : work) one.then(error);
  for (const Hop& hop : hops) finish(hop.running, error);
}

void DeviceCopies::fail_hops(Lane& lane, const std::exception_ptr& error) {
  for (const Hop& hop : std::exchange(lane.hops, {})) finish(hop.running, error);
}

// --- by way of pinned memory ---

void DeviceCopies::begin(Hop hop, Slot slot) {
  const auto shared = std::make_shared<Hop>(std::move(hop));  // owners: the steps that follow
  const auto last = [this, shared, slot](const std::exception_ptr& error) { end(*shared, slot, error); };
  copy_half(shared, slot, true, [this, shared, slot, last](const std::exception_ptr& error) {
    if (error) return last(error);
    copy_half(shared, slot, false, last);
  });
}

void DeviceCopies::copy_half(const std::shared_ptr<Hop>& hop, const Slot& slot, bool fills, Then then) {
  const int device = hop->device_of_half(fills);
  if (is_device(device)) {
    Lane& lane = lane_of(device);
    lane.work.push_back(
        {[copies = hop->device_half(slot->address(), fills)](DeviceStream& stream) { stream.copy(copies); },
         std::move(then)});
    return advance(lane);
  }
  try {
    copier_.submit([hop, slot, fills] { hop->copy_host_half(slot->address(), fills); }, then);
  } catch (const std::exception&) {
    then(std::current_exception());
  }
}

void DeviceCopies::end(const Hop& hop, Slot slot, const std::exception_ptr& error) {
  free_slots_.push_back(std::move(slot));
  finish(hop.running, error);
  advance_all();
}

DeviceCopies::Slot DeviceCopies::take_slot() {
  if (free_slots_.empty()) {
    make_slot();
    return nullptr;
  }
  Slot slot = std::move(free_slots_.back());
  free_slots_.pop_back();
  return slot;
}

void DeviceCopies::make_pinned(ByteCount bytes, MadePinned done) {
  const auto memory = std::make_shared<std::unique_ptr<DeviceMemory>>();  // owners: the job and its completion
  copier_.submit([memory, bytes] { *memory = require_runtime()->allocate_host(bytes); },
                 [memory, freed_by = freed_by_, done = std::move(done)](const std::exception_ptr& error) {
                   if (error) return done(nullptr, error);
                   done(std::make_unique<Pinned>(std::move(*memory), freed_by), nullptr);
                 });
}

void DeviceCopies::make_slot() {
  if (making_slot_ || slots_made_ == max_slots_) return;
  const auto made = [this](Slot slot, const std::exception_ptr& error) {
    making_slot_ = false;
    if (slot) {
      ++slots_made_;
      free_slots_.push_back(std::move(slot));
    } else if (slots_made_ > 0) {
      max_slots_ = slots_made_;  // these have to do
    } else {
      for (auto& [device, lane] : lanes_) fail_hops(lane, error);
    }
    advance_all();
  };
  making_slot_ = true;
  try {
    make_pinned(slot_bytes_, made);
  } catch (const std::exception&) {
    made(nullptr, std::current_exception());
  }
}

}  // namespace shardwire::memory
