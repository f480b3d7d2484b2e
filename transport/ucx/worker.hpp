// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <deque>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {

inline constexpr unsigned message_id = 1;  // the one active message
/// Both sides have to agree, so it is part of the domain.
inline constexpr const char* tcp_segment = "512K";

/// The user's UCX_TLS, split in two: what stays on the host, and what leaves it. Empty: not wanted.
struct TransportChoice {
  std::string shared_memory;
  std::string network;
};
TransportChoice choose_transports();
std::string library_version();

/// A UCX context limited to one of the two. Only its memory functions may be called by any thread.
class Context {
 public:
  /// Errors: throws Error when UCX cannot open it.
  Context(const std::string& transports, bool shared_memory);
  [[nodiscard]] ucp_context* handle() const { return handle_.get(); }

  // UCX's own lock is there only in builds with multi-threading, so there is ours.
  std::mutex memory_mutex;

 private:
  ContextHandle handle_;
};

/// A posted operation, from posting until its completion has run. UCX holds a pointer to it meanwhile.
struct Operation {
  class Worker* worker = nullptr;
  std::uint64_t endpoint = 0;  ///< of ours; 0: none
  std::uint64_t peer = 0;      ///< fabric whose death ends it
  Clock::time_point began{};   ///< set by Worker::add()
  const char* name = "";
  ByteCount expected_bytes = 0;
  ucp_ep* reply = nullptr;  ///< of a rendezvous receive: the endpoint that UCX made for it
  Bytes header;
  Completion done;  ///< empty: given up
  Outcome outcome;
  Outcome verdict;  ///< what a failure is to be called, where we know better than UCX
};

/// A message whose handler has not run yet. Its data belongs to UCX until it is received or released.
struct Arrival {
  std::array<std::byte, 128> header{};
  std::size_t header_bytes = 0;
  void* data = nullptr;
  std::size_t payload_bytes = 0;
  bool rendezvous = false;
  ucp_ep* reply = nullptr;
  bool held = false;  ///< data has to be released
  Bytes copy;         ///< of data that UCX does not let us hold
};

/// A UCX worker with its operations. UCX's callbacks only move things between the lists below; the fabric runs handlers
/// and completions once UCX has returned, so they may post, connect and destroy freely.
class Worker {
 public:
  explicit Worker(std::shared_ptr<Context> context);
  /// Bounded, 0.4 s at most.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] ucp_worker* handle() const { return handle_.get(); }
  [[nodiscard]] Context& context() const { return *context_; }
  [[nodiscard]] const std::shared_ptr<Context>& shared_context() const { return context_; }
  [[nodiscard]] Bytes address() const;
  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// Lets UCX work until it has nothing to do, or has done a good deal. Errors: rethrows what a callback could not do.
  bool progress();
  bool arm();

  /// Registers an operation; the pointer stays valid until it finishes.
  Operation* add(Operation operation);
  /// Ends an operation once: takes it off the list of those under way.
  void finish(Operation* operation, Outcome outcome);
  void finish(Operation* operation, ucs_status_t status);
  /// What a posting function of UCX returned.
  void posted(Operation* operation, ucs_status_ptr_t request);
  /// Drops the completions that `selected` names, so that they never run.
  template <typename Predicate>
  void give_up(Predicate selected) {
    for (auto& [key, operation] : under_way_) {
      if (selected(*operation)) operation->done = {};
    }
    for (auto& operation : finished) {
      if (selected(*operation)) operation->done = {};
    }
  }
  /// Reports a fault for those under way that `selected` names, although UCX keeps them.
  template <typename Predicate>
  void fault(Predicate selected, const Fault& why) {
    std::vector<Operation> reported;
    for (auto& [key, operation] : under_way_) {
      if (!operation->done || !selected(*operation)) continue;
      reported.push_back(Operation{});
      reported.back().endpoint = operation->endpoint;
      reported.back().peer = operation->peer;
      reported.back().done = std::exchange(operation->done, {});
    }
    for (auto& operation : reported) finish(add(std::move(operation)), Outcome(why));
  }
  void release(Arrival& arrival);
  /// Takes the endpoints that receives from this fabric arrive on off them, if these began until `latest`; they are about
  /// to end, for `why`.
  std::vector<ucp_ep*> replies_of(std::uint64_t fabric, Clock::time_point latest, const Fault& why);
  /// Cuts an endpoint that UCX made.
  void close(ucp_ep* reply);

  std::deque<Arrival> arrivals;
  std::deque<std::unique_ptr<Operation>> finished;

 private:
  void abort_receives();
  /// Lets what is under way on the wire end; false when it did not within its time.
  bool settle();
  static ucs_status_t on_active_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t payload_bytes, const ucp_am_recv_param_t* param);

  std::shared_ptr<Context> context_;  // owners: the worker and the regions
  std::unordered_map<Operation*, std::unique_ptr<Operation>> under_way_;
  std::exception_ptr trouble_;
  WorkerHandle handle_;  // destroyed first: UCX may still call back into the lists above
  int descriptor_ = -1;
};

}  // namespace shardwire::transport::ucx
