// SPDX-License-Identifier: Apache-2.0
#include "memory/device_copies.hpp"

#include <chrono>
#include <map>
#include <span>
#include <utility>

#include "memory/digest.hpp"

namespace shardwire::memory {

namespace {

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

/// A batch until it is done.
struct DeviceCopies::Running {
  CopyBatch batch;
  Done done;
  std::vector<QueuedCopy> copies{};  // until they are sorted
  CopyResult result{};
  std::size_t open = 1;                 // open pieces of work; one for submit() itself
  std::vector<QueuedCopy> to_digest{};  // their source sides, by index, once all copies are made
  bool digested = false;                // or digests are being taken
};

/// The copies of a batch by the engine that makes them.
struct DeviceCopies::Sorted {
  struct Share {
    std::vector<DeviceCopy> direct;  // on the device's stream
    std::vector<StagedCopy> staged;
  };
  std::map<int, Share> devices;
  std::vector<QueuedCopy> host;
};

DeviceCopies::DeviceCopies(Copier& copier, std::function<void()> wake, ByteCount pinned_budget_bytes)
    : copier_(copier),
      host_(copier),
      completions_(std::move(wake)),
      pool_(copier, pinned_budget_bytes, [this](const std::exception_ptr& error) { slots_changed(error); }) {
}

DeviceCopies::~DeviceCopies() {
  stop();
}

// Streams end before the objects that their work uses.
void DeviceCopies::stop() {
  completions_.close();
  pool_.stop();
  for (auto& [device, lane] : lanes_) lane.stop();
  completions_.clear();
}

void DeviceCopies::submit(CopyBatch batch, Done done) {
  if (!batch.on_devices) return host_.submit(std::move(batch), std::move(done));
  // owners: its remaining work
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

DeviceCopies::DevicePairs DeviceCopies::unknown_access(const std::vector<QueuedCopy>& copies) const {
  DevicePairs unknown;
  for (const QueuedCopy& copy : copies) {
    const std::pair devices{copy.target_device, copy.source_device};
    if (are_two_devices(copy) && !copy.source_isolated && !reaches_.contains(devices)) unknown.insert(devices);
  }
  return unknown;
}

bool DeviceCopies::reaches(int device, int other) const {
  const auto known = reaches_.find({device, other});
  return known != reaches_.end() && known->second;
}

// This takes as long as opening a stream. A pair that cannot be queried counts as inaccessible this time.
void DeviceCopies::ask_for_access(const std::shared_ptr<Running>& running, DevicePairs pairs) {
  const auto answers = std::make_shared<std::map<std::pair<int, int>, bool>>();  // owners: the job and its completion
  copier_.submit(
      [answers, pairs = std::move(pairs)] {
        const auto runtime = require_device_runtime();
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

void DeviceCopies::submit_on_devices(const std::shared_ptr<Running>& running) {
  Sorted sorted;
  try {
    sorted = sort(*running);
    for (const auto& [device, share] : sorted.devices) {
      running->open += share.staged.size() + (share.direct.empty() ? 0 : 1);
    }
    running->open += sorted.host.empty() ? 0 : 1;
  } catch (const std::exception&) {
    running->result.error = std::current_exception();
    sorted = {};
  }
  // Nothing may end before submit() has returned.
  const auto submitted = [this, running](const std::exception_ptr& error) { finish(running, error); };
  completions_.report(completions_.add(submitted))(std::nullopt);
  if (!sorted.host.empty()) copy_on_host(running, std::move(sorted.host));
  for (auto& [device, share] : sorted.devices) {
    DeviceLane& lane = lane_of(device);
    if (!share.direct.empty()) {
      lane.push([copies = std::move(share.direct)](DeviceStream& stream) { stream.copy(copies); },
                [this, running](const std::exception_ptr& error) { finish(running, error); });
    }
    for (StagedCopy& copy : share.staged) copy_staged(lane, running, std::move(copy));
  }
}

DeviceCopies::Sorted DeviceCopies::sort(Running& running) const {
  Sorted sorted;
  const CopyWork work = running.batch.work;
  for (const QueuedCopy& next : std::exchange(running.copies, {})) {
    if (work == CopyWork::digest) running.to_digest.push_back(next);
    if (work == CopyWork::copy_and_digest) {
      running.to_digest.push_back({next.copy.reversed(), next.target, nullptr, next.target_device});
    }
    if (work == CopyWork::digest || next.copy.bytes() == 0) continue;
    const int device = is_device(next.target_device) ? next.target_device : next.source_device;
    const bool out_of_reach =
        are_two_devices(next) && (next.source_isolated || !reaches(next.target_device, next.source_device));
    if (!is_device(device)) {
      sorted.host.push_back(next);
    } else if (next.source_device == on_host || next.target_device == on_host || out_of_reach) {
      // The stream that fills the slot waits.
      StagedCopy::append(next, pool_.slot_bytes(), sorted.devices[out_of_reach ? next.source_device : device].staged);
    } else {
      sorted.devices[device].direct.push_back({next.copy, next.source, next.target});
    }
  }
  return sorted;
}

void DeviceCopies::copy_on_host(const std::shared_ptr<Running>& running, std::vector<QueuedCopy> copies) {
  const std::size_t count = copies.size();
  try {
    host_.submit({.count = count,
                  .copy = [list = std::move(copies)](std::size_t index) { return list[index]; },
                  .stores = running->batch.stores},
                 [this, running](const CopyResult& result) { finish(running, result.error); });
  } catch (const std::exception&) {
    finish(running, std::current_exception());
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
  std::map<int, std::vector<std::size_t>> indices;  // by device, all host indices together
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
            taken->digests.push_back(digest_runs(one.copy, one.source));
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

void DeviceCopies::digest_on_device(DeviceLane& lane, const std::shared_ptr<Running>& running,
                                    std::vector<std::size_t> indices) {
  struct Taken {
    std::vector<Digest128> digests;
    std::chrono::steady_clock::time_point began{};
  };
  // owner: the continuation, which outlives the stream's work
  const auto taken = std::make_shared<Taken>(Taken{.digests = std::vector<Digest128>(indices.size())});
  std::vector<DeviceCopy> reads;
  reads.reserve(indices.size());
  for (const std::size_t i : indices) {
    const QueuedCopy& one = running->to_digest[i];
    reads.push_back({one.copy, one.source, nullptr});
  }
  lane.push(
      [taken, reads = std::move(reads)](DeviceStream& stream) {
        taken->began = std::chrono::steady_clock::now();
        stream.digest(reads, taken->digests);
      },
      [this, running, taken, indices = std::move(indices)](const std::exception_ptr& error) {
        if (!error) {
          running->result.digest_seconds += seconds_since(taken->began);
          put(taken->digests, indices, running->result);
        }
        finish(running, error);
      });
}

// owners of the events: the lender and the job
void DeviceCopies::when_ready(std::shared_ptr<const LentEvents> events, Then then) {
  const Completions::Ticket ticket = completions_.add(std::move(then));
  copier_.submit(
      [happened = completions_.report(ticket), lent = std::move(events)] { memory::when_ready(*lent, happened); },
      [this, ticket](const std::exception_ptr& error) {
        if (error) completions_.run(ticket, error);
      });
}

// An invalid event is only its caller's failure, reported once the events before it have passed: the stream continues.
void DeviceCopies::record(std::shared_ptr<const LentEvents> events, int device, Then then) {
  const auto refused = std::make_shared<std::exception_ptr>();  // owners: both halves
  lane_of(device).push(
      [events = std::move(events), device, refused](DeviceStream& stream) {
        try {
          events->record_on(stream, device);
        } catch (const Error&) {
          *refused = std::current_exception();
        }
      },
      [refused, then = std::move(then)](const std::exception_ptr& error) { then(*refused ? *refused : error); });
}

void DeviceCopies::make_pinned(ByteCount bytes, MadePinned done) {
  pool_.make(bytes, std::move(done));
}

unsigned DeviceCopies::poll() {
  const unsigned ran = host_.poll();
  return ran + completions_.poll();
}

DeviceLane& DeviceCopies::lane_of(int device) {
  return lanes_.try_emplace(device, device, copier_, completions_, pool_).first->second;
}

void DeviceCopies::slots_changed(const std::exception_ptr& error) {
  if (error) {
    for (auto& [device, lane] : lanes_) lane.fail_slot_work(error);
  }
  for (auto& [device, lane] : lanes_) lane.advance();
}

// --- through pinned memory ---

void DeviceCopies::copy_staged(DeviceLane& lane, const std::shared_ptr<Running>& running, StagedCopy copy) {
  // owners: the steps that follow
  const auto shared = std::make_shared<const StagedCopy>(std::move(copy));
  lane.push({.wanted = [running] { return running->result.error == nullptr; },
             .begin =
                 [this, running, shared](const PinnedPool::Slot& slot) {
                   const auto last = [this, running, slot](const std::exception_ptr& error) {
                     end_staged(running, slot, error);
                   };
                   copy_half(running, shared, slot, true,
                             [this, running, shared, slot, last](const std::exception_ptr& error) {
                               if (error) return last(error);
                               copy_half(running, shared, slot, false, last);
                             });
                 },
             .end = [this, running](const std::exception_ptr& error) { finish(running, error); }});
}

void DeviceCopies::copy_half(const std::shared_ptr<Running>& running, const std::shared_ptr<const StagedCopy>& copy,
                             const PinnedPool::Slot& slot, bool fills, Then then) {
  const int device = copy->device(fills);
  if (is_device(device)) {
    return lane_of(device).push(
        [copies = copy->device_half(slot->address(), fills)](DeviceStream& stream) { stream.copy(copies); },
        std::move(then));
  }
  try {
    copier_.submit(
        [running, copy, slot, fills] { copy->copy_host_half(slot->address(), fills, running->batch.stores); }, then);
  } catch (const std::exception&) {
    then(std::current_exception());
  }
}

void DeviceCopies::end_staged(const std::shared_ptr<Running>& running, PinnedPool::Slot slot,
                              const std::exception_ptr& error) {
  pool_.give_back(std::move(slot));
  finish(running, error);
  slots_changed(nullptr);
}

}  // namespace shardwire::memory
